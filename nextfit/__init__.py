"""NextFit serves Qwen3.8-Flash-Next on hardware that looks too small for it.

`LLM` and `SamplingParams` are the library; `nextfit serve` is the same engine behind HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nextfit.engine.params import SamplingParams
    from nextfit.llm import LLM, Result

__version__ = "0.1.0"
__all__ = ["LLM", "Result", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Import torch only when the library is used: `import nextfit` stays under 0.15 s."""
    if name in ("LLM", "Result"):
        from nextfit import llm

        return getattr(llm, name)
    if name == "SamplingParams":
        from nextfit.engine.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'nextfit' has no attribute {name!r}")
