"""QSA: attention of each row over the tokens of its best blocks and the open tail (spec section 4)."""

from nextfit.ops.sparse_attention.index import best_blocks, completing_rows
from nextfit.ops.sparse_attention.pages import RING, KVPages
from nextfit.ops.sparse_attention.reference import attend

__all__ = ["RING", "KVPages", "attend", "best_blocks", "completing_rows"]
