"""Make the bundled default checkpoint again: `python tools/make_default.py OUT`.

The same versions of tokenizers and NumPy give the same bytes. The hand-written files (chat template,
model card) are copied from the package.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, pre_tokenizers, trainers

from nextfit.checkpoint.names import Kind, Slot, draft_slots, trunk_slots
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig
from nextfit.models import default_path
from nextfit.text.gguf_tokenizer import assemble
from nextfit.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = Path(__file__).parent / "default" / "corpus.txt"
HAND_WRITTEN = ("chat_template.jinja", "MODEL_CARD.md")
SEED = 1234
VOCABULARY = 1024
# Qwen's added tokens in the order of their ids; the second half is not special, so decoding keeps them
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
)
NOT_SPECIAL = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think>"
)
# how often a token is sampled, as a factor of its output row: broken and control tokens hardly ever
RARE = 0.25
OFTEN = {"<|im_end|>": 1.6, "</think>": 1.4}

# factors over 1/sqrt(inputs): decided routing, audible attention, uneven streams
STRENGTH = {"gate": 1.5, "o_proj": 2.0, "block_inject_weight": 2.0}

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 256,
    "indexer_compress_ratio": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "hc_count": 4,
    "hc_lowrank": 32,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 1000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "seed": 1234,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}


def write_tokenizer(out: Path) -> Tokenizer:
    """Train the byte-level BPE on the corpus and write `tokenizer.json` and `tokenizer_config.json`."""
    trained = assemble({}, [], [])
    plain = VOCABULARY - len(SPECIAL.split()) - len(NOT_SPECIAL.split())
    trainer = trainers.BpeTrainer(
        vocab_size=plain, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(CORPUS.read_text("utf-8").split("\n\n"), trainer)
    if trained.get_vocab_size() != plain:
        raise SystemExit(f"the corpus gives {trained.get_vocab_size()} tokens, expected {plain}: lengthen it")
    trained.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL.split()])
    trained.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL.split()])
    trained.save(str(out / "tokenizer.json"))
    added = {
        str(id): {"content": token.content, "normalized": False, "special": token.special}
        | {"lstrip": False, "rstrip": False, "single_word": False}
        for id, token in sorted(trained.get_added_tokens_decoder().items())
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    _write_json(out / "tokenizer_config.json", settings)
    return load_tokenizer(out / "tokenizer.json", None, settings)


def write_configs(out: Path, tokenizer: Tokenizer) -> ModelConfig:
    """Write `config.json` and `generation_config.json`."""
    turn, text = (tokenizer.id_of(name) for name in ("<|im_end|>", "<|endoftext|>"))
    # the end of a text, not of a turn, bounds the n-grams
    config = {**CONFIG, "bos_token_id": text, "eos_token_id": text, "pad_token_id": text}
    _write_json(out / "config.json", config)
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20}
    ends = {"bos_token_id": text, "eos_token_id": [turn, text], "pad_token_id": text}
    _write_json(out / "generation_config.json", ends | sampling)
    return ModelConfig.from_hf(config, "config.json")


def write_weights(out: Path, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Write `model.safetensors` with the names and the layout of the released BF16 checkpoint."""
    random = np.random.Generator(np.random.PCG64(SEED))
    parts: dict[str, NDArray[np.float32]] = {}
    for slot in [*trunk_slots(config), *draft_slots(config)]:
        parts |= _random_parts(slot, random)
    parts["lm_head.weight"] *= _output_scales(tokenizer)[:, None]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, values in _released_layout(parts, config):
        kind = "I64" if values.dtype == np.int64 else "BF16"
        start = len(data)
        data += values.tobytes() if kind == "I64" else _bfloat16(values)
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": (start, len(data))}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    (out / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)


def _random_parts(slot: Slot, random: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Values of each part of a slot, of a size that lets every branch change the logits."""
    axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
    out = {}
    for part in slot.parts:
        shape = (*slot.shape[:axis], part.rows, *slot.shape[axis + 1 :])
        x = random.standard_normal(shape)
        match slot.kind:
            case Kind.DECAY:
                x = np.log(random.random(shape) * 3 + 0.02)  # A_log
            case Kind.VECTOR:
                x = x * 0.5 - 2 if part.name.endswith("dt_bias") else x * 0.1 + 1
            case Kind.GAIN:
                # w of 1 + w; long queries and keys, or attention would be an average over the text
                x = x * 0.1 + part.name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight"))
            case Kind.CONV:
                x *= 0.5
            case Kind.MATRIX | Kind.EXPERTS if not part.name.startswith("embed_tokens"):
                x *= STRENGTH.get(part.name.rsplit(".", 2)[-2], 1) / math.sqrt(shape[-1])
        out[part.name] = x.astype(np.float32)
    return out


def _output_scales(tokenizer: Tokenizer) -> NDArray[np.float32]:
    def scale(id: int) -> float:
        name = tokenizer.token_bytes(id).decode("utf-8", "replace")
        if tokenizer.id_of(name) is not None:
            return OFTEN.get(name, RARE)
        return 1.0 if name == "\n" or name.isprintable() and "\ufffd" not in name else RARE

    return np.array([scale(id) for id in range(VOCABULARY)], np.float32)


def _released_layout(
    parts: dict[str, NDArray[np.float32]], config: ModelConfig
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Tensor names as in the file: prefixed, gate and up fused, the n-gram table cut in shards."""
    # eight bytes wide: first, so that all offsets are aligned
    for layer in config.ple_layers:
        constants = ngram_hash(config, layer)
        prefix = f"model.layers.{layer}.ple.ple_embedding"
        yield f"{prefix}.layer_multipliers", np.array(constants.multipliers, np.int64)
        yield f"{prefix}.ngram_heads_offsets", np.array(constants.offsets, np.int64)
        yield f"{prefix}.ngram_heads_vocab_sizes", np.array(constants.sizes, np.int64)
    for name, x in parts.items():
        full = name if name.startswith(("mtp.", "lm_head.")) else f"model.{name}"
        if name.endswith("experts.gate_proj"):
            up = parts[name.replace("gate_proj", "up_proj")]
            yield full.replace("gate_proj", "gate_up_proj"), np.concatenate([x, up], axis=1)
        elif name.endswith("ngram_embedding"):
            for k, shard in enumerate(np.array_split(x, config.split_ngram_parts)):
                yield f"{full}.shard_{k}.weight", shard
        elif name.endswith("conv1d.weight"):
            yield full, x[:, None, :]
        elif not name.endswith("experts.up_proj"):
            yield full, x


def _bfloat16(x: NDArray[np.float32]) -> bytes:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(out)
    config = write_configs(out, tokenizer)
    write_weights(out, config, tokenizer)
    for name in HAND_WRITTEN:
        if (source := default_path() / name) != out / name:
            shutil.copyfile(source, out / name)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size:,} bytes, made with tokenizers {tokenizers.__version__}, NumPy {np.__version__}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/make_default.py OUT")
    main(Path(sys.argv[1]).resolve())
