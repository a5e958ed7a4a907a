"""Between text and token ids: tokenizer, chat template, incremental text with stop strings. No torch."""

from nextfit.text.detokenize import Detokenizer
from nextfit.text.markup import MarkupReader, Reader
from nextfit.text.stop import StopFinder, StopMatch
from nextfit.text.stream import TextDelta, TextStream
from nextfit.text.template import ChatTemplate
from nextfit.text.tokenizer import Tokenizer, load_tokenizer
from nextfit.text.tools import Tools

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "MarkupReader",
    "Reader",
    "StopFinder",
    "StopMatch",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "Tools",
    "load_tokenizer",
]
