"""Our tokenizer against the library's own reading of the same file; the rebuild from GGUF against both."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.errors import CheckpointError
from nextfit.models import default_path
from nextfit.text import load_tokenizer
from nextfit.text.gguf_tokenizer import build
from tests.text.samples import FIXTURES, TEXTS, default_tokenizer, gguf_metadata, micro_tokenizer

DEFAULT = default_tokenizer()
REBUILT = load_tokenizer(None, gguf_metadata(default_path(), DEFAULT.vocab_size + 40))
LIBRARY = tokenizers.Tokenizer.from_file(str(default_path() / "tokenizer.json"))
SPLIT = tokenizers.Tokenizer.from_file(str(FIXTURES / "micro-nvfp4" / "tokenizer.json")).pre_tokenizer
OUR_SPLIT = build(gguf_metadata(default_path(), 1024))[0].pre_tokenizer
NAMES = [token.content for _, token in sorted(LIBRARY.get_added_tokens_decoder().items())]

chat_text = st.lists(
    st.text(max_size=8)
    | st.sampled_from(NAMES)
    | st.text(" \t\r\n'", max_size=5)
    | st.text("0123456789.", max_size=5)
    | st.text(st.characters(categories=["Mn", "Mc", "Lo", "So", "Nd", "Zs"]), max_size=5),
    max_size=8,
).map("".join)


def _without_added() -> tokenizers.Tokenizer:
    content = json.loads((default_path() / "tokenizer.json").read_text())
    content["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(content))


PLAIN = _without_added()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts(text: str) -> None:
    ids = DEFAULT.encode(text)
    assert ids == LIBRARY.encode(text, add_special_tokens=False).ids
    assert REBUILT.encode(text) == ids
    assert DEFAULT.decode(ids, skip_special=False) == unicodedata.normalize("NFC", text)


@settings(max_examples=200, deadline=None)
@given(chat_text)
def test_any_text(text: str) -> None:
    ids = DEFAULT.encode(text)
    assert ids == LIBRARY.encode(text, add_special_tokens=False).ids
    assert REBUILT.encode(text) == ids
    assert DEFAULT.decode(ids) == LIBRARY.decode(ids)


@settings(max_examples=200, deadline=None)
@given(chat_text | st.sampled_from(TEXTS))
def test_pieces(text: str) -> None:
    """The split itself, which a small vocabulary with few merges hardly shows."""
    assert OUR_SPLIT.pre_tokenize_str(text) == SPLIT.pre_tokenize_str(text)


@settings(max_examples=100, deadline=None)
@given(chat_text)
def test_added_tokens_as_plain_text(text: str) -> None:
    ids = DEFAULT.encode(text, added_tokens=False)
    assert ids == PLAIN.encode(text, add_special_tokens=False).ids
    assert REBUILT.encode(text, added_tokens=False) == ids
    assert all(DEFAULT.token_bytes(i).decode("utf-8", "replace") not in NAMES for i in ids)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, DEFAULT.vocab_size + 5), max_size=30), st.booleans())
def test_any_ids(ids: list[int], skip: bool) -> None:
    ids.append(DEFAULT.encode("!")[0])  # closes a character that would stay open
    assert DEFAULT.decode(ids, skip_special=skip) == LIBRARY.decode(ids, skip_special_tokens=skip)


def test_file_of_the_converter() -> None:
    fields = GGUFReader(str(FIXTURES / "micro-Q4_K_M.gguf")).fields
    metadata = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}
    rebuilt, original = load_tokenizer(None, metadata), micro_tokenizer()
    for text in TEXTS:
        assert rebuilt.encode(text) == original.encode(text)
        assert rebuilt.encode(text, added_tokens=False) == original.encode(text, added_tokens=False)
    assert rebuilt.special_ids == original.special_ids
    assert rebuilt.end_ids == original.end_ids
    assert rebuilt.vocab_size == original.vocab_size == 505


@pytest.mark.parametrize("tokenizer", [DEFAULT, REBUILT], ids=["json", "gguf"])
def test_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.end_ids == tuple(LIBRARY.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    names = {tokenizer.token_bytes(i).decode() for i in tokenizer.special_ids}
    assert {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_pad|>", "<|video_pad|>"} < names
    for kept in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"):
        (id,) = tokenizer.encode(kept)
        assert kept not in names and tokenizer.id_of(kept) == id and tokenizer.decode([id]) == kept
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b")) == "ab"
    assert tokenizer.id_of("the") is None and tokenizer.id_of("<|no such|>") is None
    assert tokenizer.template_variables["eos_token"] == "<|im_end|>"
    assert tokenizer.template_variables["pad_token"] == "<|endoftext|>"


def test_token_bytes() -> None:
    assert sorted(DEFAULT.token_bytes(i) for i in range(256)) == [bytes([b]) for b in range(256)]
    ids = DEFAULT.encode("Grüße, 한국!<|im_end|>")
    assert b"".join(map(DEFAULT.token_bytes, ids)) == "Grüße, 한국!<|im_end|>".encode()
    for id in (-1, DEFAULT.vocab_size, 10**9):
        assert DEFAULT.token_bytes(id) == b""
    assert REBUILT.token_bytes(DEFAULT.vocab_size) == b""  # [PAD...]


Change = Callable[[dict[str, Any]], object]
K = "tokenizer.ggml."
GGUF_REFUSALS: list[tuple[Change, str]] = [
    (lambda m: m.update({K + "model": "llama"}), "tokenizer.ggml.model is 'llama', expected 'gpt2'"),
    (lambda m: m.pop(K + "pre"), "tokenizer.ggml.pre is None, expected 'qwen35'"),
    (lambda m: m.update({K + "pre": "qwen2"}), "tokenizer.ggml.pre is 'qwen2', expected 'qwen35'"),
    (lambda m: m.update({K + "add_bos_token": True}), "tokenizer.ggml.add_bos_token is true"),
    (lambda m: m.pop(K + "tokens"), "tokenizer.ggml.tokens is missing, expected an array"),
    (lambda m: m.update({K + "merges": "a b"}), "tokenizer.ggml.merges is str, expected an array"),
    (lambda m: m[K + "token_type"].pop(), "token_type has 1063 entries, tokenizer.ggml.tokens has 1064"),
    (lambda m: m[K + "tokens"].__setitem__(7, "!"), "token '!' is given twice, as ids 0 and 7"),
    (lambda m: m[K + "token_type"].__setitem__(3, 2), "token 3 ('$') has type 2, expected 1"),
    (lambda m: m[K + "tokens"].__setitem__(300, "a b"), "expected two tokens that join to a third"),
    (lambda m: m[K + "tokens"].__setitem__(997, "a b"), "merge 741 is"),
    (lambda m: m[K + "merges"].append("ab"), "merge 742 is 'ab', expected two tokens"),
    (lambda m: m.update({K + "eos_token_id": 5000}), "eos_token_id is 5000, expected a number below 1064"),
    (lambda m: m.update({K + "bos_token_id": "x"}), "bos_token_id is 'x', expected a number below 1064"),
    (lambda m: m[K + "token_type"].__setitem__(5, "1"), "tokenizer.ggml.token_type is not an array of int"),
]


@pytest.mark.parametrize(("change", "message"), GGUF_REFUSALS, ids=range(len(GGUF_REFUSALS)))
def test_gguf_refusals(change: Change, message: str) -> None:
    metadata = gguf_metadata(default_path(), 1064)
    change(metadata)
    with pytest.raises(CheckpointError) as refusal:
        load_tokenizer(None, metadata)
    assert message in str(refusal.value)


def test_gguf_token_outside_the_alphabet() -> None:
    metadata = gguf_metadata(default_path(), 1064)
    metadata[K + "tokens"][1030], metadata[K + "token_type"][1030] = "a b", 1
    with pytest.raises(CheckpointError, match=r"token 1030 \('a b'\) is not spelled in the byte-level"):
        load_tokenizer(None, metadata)


def _template(content: dict[str, Any]) -> None:
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"B": {"id": "B", "ids": [1], "tokens": ["B"]}},
    }


def _strange(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["a b"] = 998
    for token in content["added_tokens"]:
        token["id"] += 1


JSON_REFUSALS: list[tuple[Change, str]] = [
    (
        lambda c: c.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
        "model is 'WordLevel', expected 'BPE'",
    ),
    (lambda c: c.update(decoder=None), "decoder is NoneType, expected ByteLevel"),
    (lambda c: c.update(decoder={"type": "Fuse"}), "decoder is Fuse, expected ByteLevel"),
    (_template, "adds 1 tokens around each text, expected none"),
    (
        _strange,
        "token 998 ('a b') is not spelled in the byte-level",
    ),
    (lambda c: c["model"].update(merges=["x"]), "not a tokenizer"),
    (lambda c: c["model"].update(dropout=0.5), "tokenizer model has dropout 0.5, expected none"),
    (lambda c: c["model"].update(continuing_subword_prefix="\0"), "has continuing_subword_prefix '\\x00'"),
    (
        lambda c: c["added_tokens"][3].update(id=5),
        "'<|object_ref_start|>' says id 5, its place in the file is id 1001",
    ),
    (lambda c: c.pop("model"), "not a tokenizer: KeyError"),
]


@pytest.mark.parametrize(("change", "message"), JSON_REFUSALS, ids=range(len(JSON_REFUSALS)))
def test_json_refusals(change: Change, message: str, tmp_path: Path) -> None:
    content = json.loads((default_path() / "tokenizer.json").read_text())
    change(content)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as refusal:
        load_tokenizer(file)
    assert message in str(refusal.value) and str(file) in str(refusal.value)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.json: cannot be read: No such file"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CheckpointError, match=r"bytes\.json: not a tokenizer"):
        load_tokenizer(tmp_path / "bytes.json")
    with pytest.raises(CheckpointError, match="the checkpoint has no tokenizer"):
        load_tokenizer(None)


def test_tokens_of_the_config() -> None:
    file = default_path() / "tokenizer.json"
    more = {"1024": {"content": "<|audio|>", "special": True}, "3": {"content": "$"}}
    tokenizer = load_tokenizer(
        file, None, {"added_tokens_decoder": more, "eos_token": {"content": "<|audio|>"}}
    )
    assert tokenizer.encode("a<|audio|>")[1:] == [1024] and 1024 in tokenizer.special_ids
    assert tokenizer.template_variables == {"eos_token": "<|audio|>"}
    for id, message in (
        ("3", "token 3 is '\\$', but tokenizer_config.json says"),
        ("1030", "token 1030 is None, but"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_tokenizer(file, None, {"added_tokens_decoder": {id: {"content": "<|audio|>"}}})


@pytest.mark.parametrize(
    "listed", [[], {"x": {"content": "a"}}, {"5": "a"}, {"5": {"special": True}}, {"5": {"content": 1}}]
)
def test_config_that_lists_no_tokens(listed: Any) -> None:
    with pytest.raises(CheckpointError, match="added_tokens_decoder is not an object of tokens by id"):
        load_tokenizer(default_path() / "tokenizer.json", None, {"added_tokens_decoder": listed})


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(default_path() / "tokenizer.json"))
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("one two three four five") == DEFAULT.encode(
        "one two three four five"
    )
