"""The marks of the model's output format, in a text that arrives in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NAME = 256  # characters of a function's or parameter's name

_TAG = re.compile(
    rf"<(?:(/?think|/?tool_call|/function|/parameter)|(function|parameter)=([^<>\n]{{1,{MAX_NAME}}}))>"
)
_FIXED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "</function>", "</parameter>")
_NAMED = ("<function=", "<parameter=")
_OPEN_NAME = re.compile(rf"<(?:function|parameter)=[^<>\n]{{0,{MAX_NAME}}}")


@dataclass(frozen=True, slots=True)
class Tag:
    """`kind` is what stands behind `<`: "think", "/think", "tool_call", "function" (with its `name`) ..."""

    kind: str
    raw: str
    name: str = ""


Lexeme = str | Tag


def raw(lexeme: Lexeme) -> str:
    return lexeme if isinstance(lexeme, str) else lexeme.raw


class TagReader:
    """Cuts a text into tags and what is between them. Holds back only what may still become a tag."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def push(self, piece: str) -> list[Lexeme]:
        text, self._held = self._held + piece, ""
        found: list[Lexeme] = []
        start = at = 0  # of the text not yet in `found`, and of the search
        while (at := text.find("<", at)) >= 0:
            if (match := _TAG.match(text, at)) is not None:
                if start < at:
                    found.append(text[start:at])
                found.append(Tag(match[1] or match[2], match[0], (match[3] or "").strip()))
                start = at = match.end()
            elif _may_become_tag(text[at : at + MAX_NAME + 20]) and len(text) - at < MAX_NAME + 20:
                self._held = text[at:]
                break
            else:
                at += 1
        end = len(text) - len(self._held)
        if start < end:
            found.append(text[start:end])
        return found

    def finish(self) -> list[Lexeme]:
        """What was held back, once no more comes."""
        held, self._held = self._held, ""
        return [held] if held else []


def _may_become_tag(text: str) -> bool:
    """Whether more text could make `text`, all there is from a `<` on, begin with a tag."""
    return any(tag.startswith(text) for tag in (*_FIXED, *_NAMED)) or _OPEN_NAME.fullmatch(text) is not None
