"""The process that compiles grammars. It ends with its parent, or when a grammar takes too long.

Lines of JSON. In: what is known of the tokens, then sources (`formats.Format.source`); out, for each of them:
{"compiled": ...}, or {"error": ..., "field": ...}.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_PLACE = re.compile(
    r"^.*\.(cc|h):\d+: |\[[\d:]+\] \S+:\d+: ", re.DOTALL
)  # of an error in the library's own files
_LEAVES = ("json_schema", "regex", "grammar")


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the seconds of computing that a grammar may take."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # the library would import it, and works without
    from nextfit.text.grammar import LARGEST, MEMORY, load_core

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    core = load_core()
    compiler = _Compiler(core, core.TokenizerInfo.deserialize_json(sys.stdin.readline()), LARGEST)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(arguments[0]))  # whose signal ends the process
        print(json.dumps(compiler.answer(json.loads(line))), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Compiler:
    def __init__(self, core: Any, tokens: Any, largest: int) -> None:
        self._core, self._largest = core, largest
        self._compiler = core.GrammarCompiler(tokens, 1, False, -1, False)
        self._words = -(-int(tokens.vocab_size()) // 32)

    def answer(self, source: dict[str, Any]) -> dict[str, str]:
        whole = self._try(source["format"])
        for leaf, field in zip(_leaves(source["format"]), source["fields"], strict=True):
            # one that allows nothing shows only where nothing stands before it
            if ("error" in whole or leaf["type"] == "grammar") and "error" in (alone := self._try(leaf)):
                return {**alone, "field": field}
        return {**whole, "field": source["fields"][0]}

    def _try(self, form: dict[str, Any]) -> dict[str, str]:
        tag = json.dumps({"type": "structural_tag", "format": form})
        try:
            compiled = self._compiler.compile_structural_tag(tag)
            text = str(compiled.serialize_json())
        except Exception as error:
            return {"error": _PLACE.sub("", str(error)).strip()[:300] or type(error).__name__}
        if len(text) > self._largest:
            return {
                "error": f"has {len(text) >> 20} MiB when it is compiled; at most {self._largest >> 20} are allowed"
            }
        first = np.zeros((1, self._words), dtype=np.int32)
        matcher = self._core.GrammarMatcher(compiled, None, False, -1, None)
        if matcher.fill_next_token_bitmask(first, 0, False) and not first.any():
            return {"error": "there is no answer that it allows"}
        return {"compiled": text}


def _leaves(form: Any) -> Iterator[dict[str, Any]]:
    """The parts that requests wrote, in the order of `source["fields"]`."""
    if isinstance(form, list):
        for part in form:
            yield from _leaves(part)
    elif isinstance(form, dict):
        if form.get("type") in _LEAVES:
            yield form
        else:
            for part in form.values():
                yield from _leaves(part)
