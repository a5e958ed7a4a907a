"""The ledger of an engine: what it says was planned and allocated, and what use it saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.errors import ConfigError
from nextfit.llm import LLM
from nextfit.memory import ledger
from nextfit.memory.ledger import Account, Ledger
from tests.engine.drive import LONG, request, tiny_model

NOT_ALLOCATED = ("scratch", "modules and context")  # measured, not taken


def test_of_a_loaded_checkpoint() -> None:
    """Planned from headers, allocated as tensors: equal to the byte, with nobody left out."""
    llm = LLM(context=2000, sequences=3, prefill_chunk=64)
    llm.generate(prompt_token_ids=[[5] * 700], params={"max_tokens": 3, "temperature": 0})
    accounts = {a.owner: a for a in llm.engine.ledger()}
    for owner, a in accounts.items():
        assert a.planned is not None and (a.allocated == a.planned or owner in NOT_ALLOCATED), a
        assert 0 <= a.peak <= a.allocated
    assert {"weights", "experts", "draft", "n-gram table", "K/V pages", "row arena"} <= accounts.keys()
    used = accounts["K/V pages"].peak / accounts["K/V pages"].allocated
    pages = llm.engine.scheduler.cache.pages.capacity
    assert 700 / 16 / pages <= used <= 720 / 16 / pages
    assert accounts["recurrent slots"].peak * 3 == pytest.approx(accounts["recurrent slots"].allocated, abs=3)
    assert accounts["modules and context"].allocated > 0


def test_of_a_bare_engine() -> None:
    """Without a plan it knows what it allocated itself; nothing is used before the first step."""
    e = Engine(tiny_model(0), EngineConfig(context=128, sequences=2, snapshots=0), ())
    before = {a.owner: a for a in e.ledger()}
    assert before["weights"].planned is None and before["weights"].allocated > 0
    assert before["K/V pages"].planned == before["K/V pages"].allocated and not before["K/V pages"].peak
    e.add(request(9))
    while e.has_work():
        e.step()
    after = {a.owner: a for a in e.ledger()}
    assert after["K/V pages"].peak and after["row arena"].peak and "snapshot pool" not in after


def test_of_the_host_tier() -> None:
    """Pages that went to the host are used there, and given back in the end."""
    limits = dict(context=128, sequences=1, draft=0, kv_tokens=1, page_size=4, host_kv_tokens=200)
    limits |= dict(answer_every=16)
    e = Engine(tiny_model(0), EngineConfig(**limits), ())  # type: ignore[arg-type]
    for number in LONG:
        e.add(request(number))
    while e.has_work():
        e.step()
    account = next(a for a in e.ledger() if a.owner == "host pages")
    used = e.scheduler.cache.host.pages
    assert account.allocated == account.planned == e.memory.cold.nbytes
    assert 0 < (used.capacity - used.free) / used.capacity <= account.peak / account.allocated < 1


def test_growth_and_the_most_ever_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(ledger, "STATUS", status)
    status.write_text("Name:\tx\nRssAnon:\t 1000 kB\nRssFile:\t 24 kB\n")
    book = Ledger(
        {"K/V pages": 400, "scratch": 9000}, {"K/V pages": 400, "n-gram table": 10**9, "weights": 600}
    )
    for pages in (0.5, 0.75, 0.25):
        book.note(pages=pages)
    status.write_text("Name:\tx\nRssAnon:\t 1003 kB\nRssFile:\t 24 kB\n")
    assert book.accounts() == [
        Account("weights", None, 600, 600),
        Account("n-gram table", None, 10**9, 10**9),
        Account("K/V pages", 400, 400, 300),
        Account("scratch", 9000, 3 * 1024, 3 * 1024),
        Account("modules and context", None, 1024 * 1024 - 1000, 1024 * 1024 - 1000),
    ]
    status.unlink()
    assert ledger.resident() == (0, 0)


def test_what_does_not_fit_is_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextfit.llm.host_memory", lambda: 300 << 20)
    monkeypatch.setattr("nextfit.llm.load_weights", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=r"does not fit[\s\S]*largest owner is K/V pages[\s\S]*--context"):
        LLM()
