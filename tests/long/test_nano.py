"""The trained model's greedy answers, by transformers and by the engine with drafts, float32."""

from __future__ import annotations

from random import Random

import pytest
import torch
from transformers.models.qwen4_exp import Qwen4ExpForCausalLM

from nextfit.accept import retrieval
from nextfit.accept.tasks import Plan
from nextfit.llm import LLM
from nextfit.models import default_path
from tests.oracle.reference import lower_block_first

NANO = default_path().parent / "nano"
PROMPTS, LONG, TOKENS = 50, 6, 48


def prompts(llm: LLM) -> list[list[int]]:
    """Held-out questions, the last of them about texts of 1,024 tokens: four times what attention selects."""
    r = Random(11)
    texts = retrieval.lanes(r, 1, (1024,), lambda text: len(llm.tokenizer.encode(text)))
    short, long = (
        [case for lane in Plan(2).short(r) for case in lane],
        [case for lane in texts for case in lane],
    )
    cases = r.sample(short, PROMPTS - LONG) + long
    assert llm.template is not None and len(cases) == PROMPTS
    return [
        llm.tokenizer.encode(llm.template.render([*c.messages[:1]], c.tools or None, **c.options))
        for c in cases
    ]


@pytest.mark.timeout(900)
def test_greedy_answers_are_those_of_transformers() -> None:
    llm = LLM(NANO, dtype="float32", draft=4, context=2048, sequences=8)
    asked = prompts(llm)
    assert sum(len(ids) > 4 * llm.engine.model.config.indexer_budget - 200 for ids in asked) >= LONG
    ours = llm.generate(prompt_token_ids=asked, params={"temperature": 0, "max_tokens": TOKENS})
    assert sum(result.accepted for result in ours) > len(asked)
    theirs = Qwen4ExpForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="sdpa").eval()
    for ids, result in zip(asked, ours, strict=True):
        with lower_block_first():
            (found,) = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS)
        answer = found[len(ids) :].tolist()
        if result.finish_reason == "stop":
            assert answer.pop() in theirs.generation_config.eos_token_id
        assert result.token_ids == answer
