"""What a causal window needs of the rows before this step: a committed tail and the rows of the last verify.

Convolution inputs and token ids all live this way, so all of them are committed by the
same code at the same moment.
"""

from nextfit.ops.history.reference import Extended, History, causal_conv, commit, extend, remember

__all__ = ["Extended", "History", "causal_conv", "commit", "extend", "remember"]
