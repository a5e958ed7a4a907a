"""Pages that went to the host and came back: the answers are those of a cold engine, and the bytes really moved."""

from __future__ import annotations

import pytest

from nextfit.cache import Move
from nextfit.engine.engine import Engine
from nextfit.engine.paranoid import poison
from nextfit.errors import ConfigError
from nextfit.llm import LLM
from tests.engine.test_prefix import ask, cached, ids, make

SMALL = dict(context=128, sequences=1, page_size=4, kv_tokens=1, adaptive_draft=False)
PROMPT = ids(100)


def on_the_host(e: Engine) -> bool:
    """Whether all of the prompt's pages are, as the tree says."""
    (saved,) = [s for s in e.scheduler.cache.saved() if len(s.pages) == 24 and s.key.startswith(b"\0" * 4)]
    return max(saved.pages) < 0


def evicted(draft: int) -> Engine:
    """An engine that knows the prompt, but has other prompts' pages on the device."""
    e = make(draft, host_kv_tokens=400, **SMALL)
    ask(e, [PROMPT])
    before = e.host_pages.sent
    for seed in (1, 2):
        ask(e, [[1 + seed, *ids(110, seed)]])
    assert on_the_host(e) and e.host_pages.sent >= before + 24 and not e.host_pages.returned
    return e


@pytest.mark.parametrize("draft", [0, 4])
def test_what_comes_back_is_what_went(draft: int) -> None:
    """Also when nothing of it is left on the device, and not when the host has lost it."""
    ((tokens, logprobs, _),) = ask(make(draft, snapshots=0, **SMALL), [PROMPT])
    e = evicted(draft)
    for tensor in e.state.paged():
        poison(tensor)
    ((again, close, last),) = ask(e, [PROMPT])
    assert again == tokens and all(abs(a - b) < 1e-9 for a, b in zip(close, logprobs, strict=True))
    assert cached(last) == 96 and e.host_pages.returned == 24
    lost = evicted(draft)
    poison(lost.memory.cold)
    ((_, strange, _),) = ask(lost, [PROMPT])
    assert any(x != x for x in strange)


def test_a_page_moves_more_than_once_in_a_step() -> None:
    """Copies follow the order of moves: each page ends with what the bookkeeping says it has."""
    e = make(host_kv_tokens=16, **SMALL)
    key, cold = next(e.state.paged()), e.host_pages._pairs[0][1]
    for page in (1, 2, 3, 4):
        key[page] = page
    e.host_pages.copy([Move(1, 1, True), Move(2, 1, True), Move(3, 2, True), Move(5, 1, False)])
    assert [key[5].unique().tolist(), cold[2].unique().tolist()] == [[2.0], [3.0]]
    e.host_pages.copy([Move(6, 1, False), Move(6, 2, False), Move(4, 2, True), Move(7, 2, False)])
    assert [key[n].unique().tolist() for n in (6, 7)] == [[3.0], [4.0]]
    assert (e.host_pages.sent, e.host_pages.returned) == (4, 4)


def test_it_needs_snapshots() -> None:
    with pytest.raises(ConfigError, match="--host-kv-tokens, --snapshots"):
        LLM(host_kv_tokens=64, snapshots=0)
    with pytest.raises(ConfigError, match=r"host_kv_tokens is -1; expected at least 0 \(--host-kv-tokens\)"):
        LLM(host_kv_tokens=-1)
