"""Between text and token ids: tokenizer, chat template, incremental text with stop strings. No torch."""

from nextfit.text.detokenize import Detokenizer
from nextfit.text.stop import StopFinder, StopMatch
from nextfit.text.stream import TextDelta, TextStream
from nextfit.text.template import ChatTemplate
from nextfit.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopFinder",
    "StopMatch",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "load_tokenizer",
]
