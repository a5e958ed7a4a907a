"""Write the 1.35B-parameter model of the speed tables: `python -m bench.medium OUT`.

Random weights, bf16, 2.7 GB, no tokenizer. Takes about 6 GB of memory.
"""

import sys
from pathlib import Path

import torch

from tests.support.checkpoint_writer import tensors, write_checkpoint
from tests.support.random_model import random_parts, small_config

MEDIUM = small_config(
    hidden_size=1024,
    num_hidden_layers=12,
    vocab_size=8192,
    max_position_embeddings=32768,
    num_attention_heads=8,
    head_dim=128,
    rotary_dim=32,
    indexer_n_heads=4,
    indexer_head_dim=128,
    indexer_budget=2048,
    linear_num_key_heads=4,
    linear_num_value_heads=12,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
    hc_lowrank=128,
    ple_embed_dim=1024,
    ngram_vocab_size_base=20000,
    split_ngram_parts=8,
    eos_token_id=514,
    dtype="bfloat16",
)

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    dtype, shards = getattr(torch, MEDIUM.dtype), MEDIUM.split_ngram_parts
    values = tensors(MEDIUM, random_parts(MEDIUM), dtype=dtype, table_shards=shards)
    write_checkpoint(Path(sys.argv[1]), MEDIUM, values)
