"""The prefix cache saved and loaded: an engine that begins with it computes and says what the last one would have."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from nextfit.engine.engine import Engine
from nextfit.engine.persist import CacheFile
from nextfit.errors import ConfigError
from nextfit.llm import LLM
from tests.engine.test_prefix import Rows, ask, cached, ids, make, prefills

__all__ = ["prefills"]

IDENTITY = {"weights": "tiny", "config": "0"}
PROMPTS = (ids(60), ids(60)[:30] + ids(20, 1), ids(40, 2))


def used(draft: int) -> Engine:
    """An engine that has answered the prompts."""
    e = make(draft, answer_every=16, adaptive_draft=False)
    for prompt in PROMPTS:
        ask(e, [prompt], max_tokens=20)
    return e


def reloaded(path: Path, draft: int = 0, identity: dict[str, str] = IDENTITY, limits: Any = None) -> Engine:
    e = make(draft, answer_every=16, adaptive_draft=False, **(limits or {}))
    CacheFile(path, identity).load(e.snapshots)
    e.scheduler.check()
    return e


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "cache"
    CacheFile(path, IDENTITY).save(used(0).snapshots)
    return path


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


def test_the_next_engine_is_warm(tmp_path: Path, prefills: Rows) -> None:
    """Rows, tokens, logprobs and drafts are those of the engine that never ended; cold tokens are equal."""
    old = used(4)
    CacheFile(tmp_path / "cache", IDENTITY).save(old.snapshots)
    new, cold = reloaded(tmp_path / "cache", 4), make(4, snapshots=0, adaptive_draft=False)
    for question in (*PROMPTS, PROMPTS[1][:70] + ids(8, 4)):
        found = []
        for e in (old, new, cold):
            prefills.clear()
            ((tokens, logprobs, last),) = ask(e, [question], max_tokens=12)
            found.append((tokens, logprobs, last.stats, sum(n for _, n in prefills)))
        (a, p, stats, rows), (b, q, same, rows_too), (c, r, _, whole) = found
        assert a == b == c
        assert all(abs(x - y) < 1e-9 and abs(x - z) < 1e-9 for x, y, z in zip(p, q, r, strict=True))
        assert stats == same and stats is not None and stats.cached_tokens > 0
        assert rows == rows_too == len(question) - stats.cached_tokens and whole == len(question)


def held(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a state has, found without its help."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from held(item, f"{name}.{key}")
    elif type(value).__module__.startswith("nextfit."):
        names = getattr(value, "__slots__", None) or vars(value)
        for key in names:
            yield from held(getattr(value, key), f"{name}.{key}")


def test_everything_but_the_logs_is_copied(tmp_path: Path) -> None:
    old = used(4)
    CacheFile(tmp_path / "cache", IDENTITY).save(old.snapshots)
    new = reloaded(tmp_path / "cache", 4)
    shape, kinds = old.state.shape, set()
    before, after = dict(held(old.state)), dict(held(new.state))
    ways = list(zip(old.scheduler.cache.saved(), new.scheduler.cache.saved(), strict=True))
    assert len(ways) > 3
    for name, tensor in before.items():
        kind = name.rsplit(".", 1)[1]
        if kind == "log" or ".delta." in name and kind != "matrix":
            continue
        kinds.add(kind)
        for a, b in ways:
            assert a.key == b.key
            if len(tensor) == shape.slots:
                assert torch.equal(
                    tensor[old.snapshots.slot(a.snapshot)], after[name][new.snapshots.slot(b.snapshot)]
                )
            else:
                assert len(tensor) == shape.pages
                assert torch.equal(tensor[a.pages], after[name][b.pages])
    assert kinds == {"key", "value", "block", "ring", "tail", "matrix"}


def test_an_answer_goes_on_where_it_ended(tmp_path: Path, prefills: Rows) -> None:
    e = make(4, answer_every=16, adaptive_draft=False)
    ((answer, *_),) = ask(e, [ids(40)], max_tokens=45)
    CacheFile(tmp_path / "cache", IDENTITY).save(e.snapshots)
    new, question = reloaded(tmp_path / "cache", 4), ids(40) + answer + ids(10, 2)
    prefills.clear()
    ((*_, last),) = ask(new, [question])
    assert cached(last) == 80 and prefills == [(80, 15)]


def test_it_is_a_safetensors_file(saved: Path) -> None:
    with safe_open(saved, "pt") as file:
        metadata, names = file.metadata(), set(file.keys())
        keys = [file.get_tensor(f"entry.{i}.key").tolist() for i in range(int(metadata["entries"]))]
    assert metadata["weights"] == "tiny" and {"slots.0", "pages.0"} <= names
    assert ids(60)[:48] in keys
    assert saved.stat().st_mode & 0o077 == 0  # others may not read what was asked


def test_saved_again_from_what_was_loaded(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    CacheFile(again, IDENTITY).save(reloaded(saved).snapshots)
    assert again.read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("limits", [{"snapshots": 2}, {"context": 128, "kv_tokens": 128, "sequences": 1}])
def test_less_room(limits: dict[str, int], saved: Path) -> None:
    e = reloaded(saved, limits=limits)
    ((tokens, _, last),) = ask(e, [PROMPTS[2]])
    ((wanted, *_),) = ask(make(snapshots=0), [PROMPTS[2]])
    assert tokens == wanted and cached(last) > 0


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)


def test_another_identity(saved: Path, original: Path, caplog: pytest.LogCaptureFixture) -> None:
    e = make()
    file = CacheFile(saved, {"weights": "others", "config": "0"})
    file.load(e.snapshots)
    assert "the saved prefix cache has other weights; it is not used" in warnings(caplog)
    file.save(e.snapshots)
    assert saved.read_bytes() == original.read_bytes()  # nothing for something would be a bad exchange
    assert cached(ask(e, [PROMPTS[0]])[0][2]) == 0
    file.save(e.snapshots)
    assert (
        cached(ask(reloaded(saved, identity={"weights": "others", "config": "0"}), [PROMPTS[0]])[0][2]) == 48
    )


def test_without_a_prefix_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--cache-file"):
        LLM(context=512, snapshots=0, cache_file=tmp_path / "cache")


def damages(data: bytes) -> dict[str, bytes]:
    """Every kind of part of the file changed by one bit, cut off, or something else altogether."""
    header = 8 + int.from_bytes(data[:8], "little")
    places = [0, 7, 8, 20, header - 30, header, *range(header, len(data), len(data) // 40), len(data) - 1]
    found = {f"bit at {i}": data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :] for i in places}
    found |= {f"cut at {i}": data[:i] for i in (0, 5, 100, header, len(data) // 2, len(data) - 1)}
    text = json.loads(data[8:header])
    return found | {
        "longer": data + b"\0",
        "text": b"a diary",
        "weights": _file({"a": text["slots.0"]}, data),
    }


def _file(header: dict[str, Any], data: bytes) -> bytes:
    """A safetensors file that is somebody else's."""
    for entry in header.values():
        start, end = entry["data_offsets"]
        entry["data_offsets"] = [0, end - start]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end - start)


def test_a_damaged_file_is_told_and_left_alone(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    e = make()
    for what, data in damages(saved.read_bytes()).items():
        caplog.clear()
        saved.write_bytes(data)
        file = CacheFile(saved, IDENTITY)
        file.load(e.snapshots)
        e.scheduler.check()
        assert str(saved) in warnings(caplog), what
        assert not e.scheduler.cache.saved(), what
        if "has other" not in warnings(caplog):
            file.save(e.snapshots)
            assert saved.read_bytes() == data, what
    assert cached(ask(e, [PROMPTS[0]])[0][2]) == 0


def test_what_cannot_be_written(
    saved: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (saved.parent, saved / "below a file", saved.parent / "no folder" / "cache"):
        with pytest.raises(ConfigError, match="--cache-file"):
            CacheFile(path, IDENTITY)
    before, file = saved.read_bytes(), CacheFile(saved, IDENTITY)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    file.save(make().snapshots)
    assert "could not be saved" in warnings(caplog) and "No space left" in warnings(caplog)
    assert saved.read_bytes() == before and [p.name for p in saved.parent.iterdir()] == ["cache"]


def test_through_the_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, prompt = tmp_path / "cache", [(11 * i) % 900 for i in range(200)]
    asked: Any = dict(prompt_token_ids=[prompt], params={"max_tokens": 4, "temperature": 0})
    with caplog.at_level(logging.WARNING):
        first = LLM(context=512, cache_file=path)
        (before,) = first.generate(**asked)
        first.save_cache()
        (warm,) = LLM(context=512, cache_file=path).generate(**asked)
        assert (before.cached_tokens, warm.cached_tokens) == (0, 192)
        assert warm.token_ids == before.token_ids
        assert not caplog.records
        (other,) = LLM(context=512, cache_file=path, draft=0, dtype="float32").generate(**asked)
    assert other.cached_tokens == 0
    assert "has other dtype, draft head" in warnings(caplog)
