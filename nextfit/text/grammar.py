"""Grammars that answers are held to. The only module that knows xgrammar.

A grammar is given as text, see `formats`. It is compiled in a process of its own (`grammar_process`), which a hostile
one may take down, and then read here, once for all requests that use it; each answer has a matcher.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextfit.errors import RequestError
from nextfit.interpreter import command, greeting
from nextfit.text.tokenizer import Tokenizer

SECONDS = 10  # that a grammar may take to compile, if nothing else is said
MEMORY = 4 << 30  # bytes of address space of the process that compiles
LARGEST = 64 << 20  # bytes of a compiled grammar, as text
KEPT = 64  # grammars, compiled or refused
PATIENCE, PER_TOKEN = (
    1.0,
    0.01,
)  # seconds that following one answer may cost, and those won back with each token


@cache
def load_core() -> Any:
    """xgrammar's compiled part. The package's own `__init__` imports transformers, which nothing here needs."""
    found = importlib.util.find_spec("xgrammar")
    assert found is not None and found.submodule_search_locations is not None
    package = types.ModuleType("xgrammar")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules.setdefault("xgrammar", package)
    importlib.import_module("xgrammar.load_binding")
    return importlib.import_module("xgrammar.base")._core


class Matcher:
    """How far one answer has come in its grammar.

    Some grammars take longer with every token, for whoever shares the step; such an answer is given up.
    """

    def __init__(self, compiled: Any, ends: Collection[int], vocabulary: int) -> None:
        self._matcher = load_core().GrammarMatcher(compiled, sorted(ends), False, -1, None)
        self._bits = np.zeros((1, -(-vocabulary // 32)), dtype=np.int32)
        self._vocabulary = vocabulary
        self._left = PATIENCE  # seconds

    def mask(self) -> NDArray[np.bool_] | None:
        """Which tokens may come next, [vocabulary]; None: all. End tokens may where the answer is complete."""
        if self._left < 0:
            return None  # no token will be accepted
        start = time.thread_time()
        some = self._matcher.fill_next_token_bitmask(self._bits, 0, False)
        self._left -= time.thread_time() - start
        if not some:
            return None
        bits = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")
        return bits[: self._vocabulary].view(np.bool_)

    def accept(self, token: int) -> bool:
        """Go on by one token; False, and nothing has changed, if it may not come next or time is up."""
        if self._left < 0:
            return False
        start = time.thread_time()
        accepted = self._matcher.accept_token(token, False)
        self._left = min(PATIENCE, self._left + PER_TOKEN) - (time.thread_time() - start)
        return bool(accepted)

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        self._matcher.rollback(count)


class Grammar:
    """A compiled grammar."""

    def __init__(self, compiled: Any, vocabulary: int) -> None:
        self._compiled, self._vocabulary = compiled, vocabulary

    def matcher(self, ends: Collection[int]) -> Matcher:
        """For a new answer; `ends` may come when the grammar is satisfied, and only then."""
        return Matcher(self._compiled, ends, self._vocabulary)


class Grammars:
    """Compiles grammars for one tokenizer and a model of `vocabulary` tokens, and keeps those used last.

    One may take `seconds` to compile.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, seconds: int = SECONDS) -> None:
        self._tokenizer, self._vocabulary, self._seconds = tokenizer, vocabulary, seconds
        self._kept: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._process: subprocess.Popen[bytes] | None = None

    def get(self, source: str) -> Future[Grammar]:
        """The grammar, once it is compiled; RequestError that names the field if it cannot be."""
        with self._lock:
            found = self._kept.get(source)
            if found is None:
                found = self._kept[source] = self._thread.submit(self._compile, source)
            self._kept.move_to_end(source)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """End the process that compiles, if it runs."""
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _compile(self, source: str) -> Grammar:
        answer = self._ask(source)
        if "error" in answer:
            field = answer["field"]
            raise RequestError(f"{field}: {answer['error']}", field)
        compiled = load_core().CompiledGrammar.deserialize_json(answer["compiled"], self._tokens)
        return Grammar(compiled, self._vocabulary)

    @cached_property
    def _tokens(self) -> Any:
        """The bytes of each token, none for special ones, as the compiler takes them."""
        t = self._tokenizer
        tokens = [b"" if i in t.special_ids else t.token_bytes(i) for i in range(self._vocabulary)]
        return load_core().TokenizerInfo(tokens, 0, self._vocabulary, list(t.end_ids), False)

    def _ask(self, source: str) -> dict[str, str]:
        """What the process that compiles says; without one, or once it has ended, of a new one."""
        if self._process is None:
            self._process = subprocess.Popen(
                command("nextfit.text.grammar_process", str(self._seconds)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the library's warnings quote what it compiles
                process_group=0,
            )
            self._say(greeting() + self._tokens.serialize_json())
        self._say(source)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        self._end()
        fields = json.loads(source)["fields"]
        why = f"takes more than {self._seconds} s or {MEMORY >> 30} GiB to compile; it is too complicated"
        return {"error": why, "field": fields[0]}

    def _say(self, text: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
