"""Small float64 models, traces of requests, and the check that whatever happened changed no token."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from os.path import commonprefix

import torch
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Sampled
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.model import Model
from tests.engine import near
from tests.engine.alike import FAMILY, FIRST, alike, kind
from tests.engine.watch import Watch
from tests.support.random_model import random_weights, small_config

EOS = 44
ENDS = (EOS, 45)
CONTEXT = 128
TINY = dict(
    hidden_size=16,
    num_hidden_layers=2,
    layer_types=("linear_attention", "full_attention"),
    ple_layers=(0,),
    vocab_size=48,
    eos_token_id=EOS,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    rotary_dim=4,
    indexer_n_heads=1,
    indexer_head_dim=8,
    indexer_budget=8,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=8,
    hc_count=2,
    hc_lowrank=4,
    ple_embed_dim=16,
    heads_per_ngram=2,
)
OTHER = dict(
    num_hidden_layers=3,
    layer_types=("linear_attention", "linear_attention", "full_attention"),
    ple_layers=(0, 1),
    output_gate_type="silu",
    num_key_value_heads=2,
    linear_num_key_heads=2,
    value_heads_tiled=True,
    linear_num_value_heads=4,
    indexer_budget=12,
)
PENALISED = 200  # a request whose every token depends on how often others came before
TWINS = 500
LONG = range(100, 104)  # requests with long answers that no end token cuts


@cache
def tiny_model(number: int, exact: bool = True) -> Model:
    """In float64 if `exact`, else in float32; from `TWINS` on, tokens t and t + 24 have all but the same logits.

    A model that repeats what it reads would not notice state that is left behind: 0 and 1 do not.
    """
    changes = [TINY, TINY | OTHER][number] if number < 2 else TINY | drawn_shape(number)
    dtype = torch.float64 if exact else torch.float32
    if number < TWINS:
        c = small_config(**changes)
        return Model(c, random_weights(c, seed=number, dtype=dtype), dtype)
    c = small_config(**changes | dict(tie_word_embeddings=False))
    weights = random_weights(c, seed=number, dtype=dtype)
    half = weights["lm_head"][:24]
    weights["lm_head"] = torch.cat([half, half * (1 + 2**-22)])
    return Model(c, weights, dtype)


def drawn_shape(number: int) -> dict:
    rng = random.Random(f"model {number}")
    linear, full = "linear_attention", "full_attention"
    layers = rng.choice([(linear, full), (full, linear), (linear, linear, full), (linear, full, full)])
    heads, kv_heads = rng.choice([(2, 1), (2, 2), (4, 2)])
    key_heads, value_heads = rng.choice([(1, 1), (1, 2), (2, 2), (2, 4)])
    experts, chosen = rng.choice([(2, 1), (4, 2), (6, 3)])
    return dict(
        num_hidden_layers=len(layers),
        layer_types=layers,
        ple_layers=rng.choice([(0,), (len(layers) - 1,), (0, 1)]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        indexer_n_heads=rng.choice([1, 2]),
        indexer_budget=rng.choice([4, 8, 12, 16]),
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        value_heads_tiled=rng.random() < 0.5,
        linear_conv_kernel_dim=rng.choice([2, 3, 4]),
        output_gate_type=rng.choice(["sigmoid", "silu"]),
        num_experts=experts,
        num_experts_per_tok=chosen,
        norm_topk_prob=rng.random() < 0.5,
        hc_count=rng.choice([2, 3]),
        ngram_size=rng.choice([2, 3]),
        ple_conv_kernel_size=rng.choice([2, 3, 4]),
        tie_word_embeddings=rng.random() < 0.5,
    )


@cache
def request(number: int) -> Request:
    """One of endless requests, all different in length and settings; those that begin alike are in `alike`."""
    own = number % FAMILY
    if own >= FIRST:
        return alike(number, lambda model, n: [t.token for t in solo(model, n).tokens])
    rng = random.Random(f"request {number}")
    if own in LONG:
        prompt = [rng.randrange(48) for _ in range(rng.randint(16, 28))]
        params = SamplingParams(
            max_tokens=36, temperature=number % 2, seed=number, logprobs=1, ignore_eos=True
        )
        return Request(str(number), prompt, params)
    if own == PENALISED:
        params = SamplingParams(
            max_tokens=20,
            temperature=0,
            frequency_penalty=1,
            repetition_penalty=1.2,
            logit_bias={3: 5.0, 7: 4.5, 11: 4.0},
            logprobs=1,
            ignore_eos=True,
        )
        return Request(str(number), [3, 5, 9], params)
    length = rng.choice([1, 2, 3, 5, 11, 20, 37, 63, 64, 65, 80])
    prompt = [rng.randrange(48) for _ in range(length)]
    params = SamplingParams(
        max_tokens=rng.choice([1, 6, 12, 20]),
        min_tokens=rng.choice([0, 0, 6]),
        temperature=rng.choice([0, 0.7, 1, 2]),
        top_k=rng.choice([0, 0, 5, 20]),
        top_p=rng.choice([1, 1, 0.9, 0.5]),
        min_p=rng.choice([0, 0, 0.05]),
        repetition_penalty=rng.choice([1, 1, 1.5]),
        presence_penalty=rng.choice([0, 0, 0.8]),
        frequency_penalty=rng.choice([0, 0, 0.6]),
        logit_bias=rng.choice([{}, {}, {3: 2.0, 44: 3.0}]),
        seed=rng.choice([0, 7, 2**40 + 1]),
        choice=rng.choice([0, 0, 1, 2]),
        logprobs=rng.choice([0, 2]),
        stop_token_ids=rng.choice([(), (), (5, 9)]),
        ignore_eos=rng.random() < 0.2,
        priority=rng.choice([0, 0, -1]),
    )
    return Request(str(number), prompt, params)


@dataclass
class Answer:
    tokens: list[Sampled] = field(default_factory=list)
    last: Output | None = None  # the one that ended it

    def add(self, out: Output) -> None:
        assert self.last is None, "output after the end"
        self.tokens += out.tokens
        if out.finish_reason:
            self.last = out


def engine(model: int, exact: bool = True, **limits: object) -> Engine:
    values = (
        dict(context=CONTEXT, sequences=1, prefill_chunk=CONTEXT, draft=0, snapshots=0, answer_reserve=1)
        | limits
    )
    return Engine(tiny_model(model, exact), EngineConfig(**values), ENDS, random_clock())  # type: ignore[arg-type]


def random_clock() -> Callable[[], float]:
    """Time in which steps take anything, so that adaptive drafting chooses all kinds of depths."""
    rng, now = random.Random(0), itertools.count()
    return lambda: next(now) + rng.random() ** 4 * 10


@cache
def solo(model: int, number: int, exact: bool = True) -> Answer:
    """Alone, cold, the prompt in one piece, no drafts."""
    answer, e = Answer(), engine(model, exact)
    e.add(request(number))
    while e.has_work():
        for out in e.step():
            answer.add(out)
    assert answer.last is not None
    return answer


@cache
def drafts_after(model: int, number: int, tokens: int) -> tuple[list[int], list[Tensor]]:
    """What the draft head says after the first `tokens` tokens of the finished sequence, computed afresh.

    With the history that it says it from (`draft_history`), in which faults show that change no draft.
    """
    r = request(number)
    whole = r.prompt + [t.token for t in solo(model, number).tokens]
    e = engine(model, draft=8, adaptive_draft=False)
    e.add(r)
    s = running(e, r.id)
    s.tokens = whole[: tokens - 1]
    e.step()
    assert s.tokens == whole[:tokens]
    return s.drafts, draft_history(e, s)


def draft_history(e: Engine, s: Sequence) -> list[Tensor]:
    """Keys, values and block keys of the draft head over the computed tokens of `s`."""
    pages, table = e.state.draft, torch.tensor(s.pages)
    assert pages is not None
    return [*pages.tokens(table, 0, s.computed), pages.blocks(table, 0, s.computed // 4)]


def running(e: Engine, request_id: str) -> Sequence:
    return e._sequences[request_id]


@dataclass
class Trace:
    """Who comes when, who leaves when, and which drafts the engine is made to verify."""

    model: int
    limits: dict
    arrivals: dict[int, int]  # request -> step
    cancels: dict[int, int] = field(default_factory=dict)  # request -> step
    forced: dict[int, str] = field(default_factory=dict)  # request -> a way of `force`
    check_drafts: bool = False
    preempts: dict[int, range] = field(default_factory=dict)  # request -> steps
    exact: bool = True  # in float64; in float32 near-ties may fall either way


def force(way: str, right: list[int], step: int) -> list[int]:
    """Drafts instead of `right`, the tokens that will really come: "3" is right up to a wrong one at index 3."""
    if way == "right":
        return right
    wrong = int(way) if way.isdigit() else (step % 2 * 3 if way == "alternating" else 0)
    return [t if i != wrong else (t + 1) % 48 for i, t in enumerate(right)]


def run(trace: Trace, seen: Counter, prepare: Callable[[Engine], None] = lambda e: None) -> None:
    """Drive the trace; every answer must be the solo one (the beginning of it where it was cancelled)."""
    e = engine(trace.model, trace.exact, **trace.limits)
    watch = Watch(e, seen, lambda i: kind(int(i)))
    prepare(e)
    for n in trace.arrivals:
        note_settings(request(n), e.model.config.indexer_budget, seen)
    answers = {n: Answer() for n in trace.arrivals}
    forced: dict[int, int] = {}  # request -> its tokens when it was last given drafts
    step = 0
    while e.has_work() or any(step <= at for at in trace.arrivals.values()):
        for n, at in trace.arrivals.items():
            if at == step:
                e.add(request(n))
        for n, at in trace.cancels.items():
            if at == step and request(n).id in e._sequences:
                s = running(e, request(n).id)
                seen["cancelled in the prompt"] += 0 < s.computed < s.prompt_length
                seen["cancelled while decoding"] += s.decoding
                seen["cancelled while waiting"] += s in e.scheduler.waiting
                seen["cancelled while awaited"] += s in e.scheduler.waiting and e.scheduler._awaited(s)
                e.cancel(request(n).id)
        for n, steps in trace.preempts.items():
            for s in [s for s in e.scheduler.running if step in steps and s.request.id == str(n)]:
                e.scheduler._preempt(s, [])
        for out in observed_step(e, trace, step, forced, seen):
            answers[int(out.request_id)].add(out)
        e.scheduler.check()
        step += 1
        assert step < 2000, "the engine makes no progress"
    for n, answer in answers.items():
        if trace.exact:
            compare(answer, solo(trace.model, n), request(n))
        else:
            differs = compare_near(answer, solo(trace.model, n, exact=False), request(n), trace.model)
            seen["answers that differ"] += differs
        seen["answers compared"] += 1
        seen["tokens compared"] += len(answer.tokens)
        assert answer.last is not None and answer.last.stats is not None
        assert answer.last.stats.cached_tokens == watch.cached.get(str(n), 0)
    pages = e.scheduler.cache.pages
    assert pages.free + pages.idle == pages.capacity
    e.scheduler.cache.flush()
    e.scheduler.check()
    host = e.scheduler.cache.host
    assert pages.free == pages.capacity and host.pages.free == host.pages.capacity
    assert e.host_pages.sent >= e.host_pages.returned
    assert e.scheduler.slots.free == e.scheduler.slots.capacity


def note_settings(r: Request, budget: int, seen: Counter) -> None:
    p = r.params
    seen["prompts over the sparse budget"] += len(r.prompt) >= budget + 4
    seen["greedy" if p.temperature == 0 else "sampled"] += 1
    seen["penalties"] += p.repetition_penalty != 1 or bool(p.presence_penalty or p.frequency_penalty)
    for name in ("top_k", "min_p", "logit_bias", "choice", "min_tokens"):
        seen[name] += bool(getattr(p, name))
    seen["top_p"] += p.top_p < 1


def observed_step(e: Engine, trace: Trace, step: int, forced: dict[int, int], seen: Counter) -> list[Output]:
    before: list[tuple[Sequence, bool, list[int], int, int]] = []
    for s in list(e.scheduler.running):
        n = int(s.request.id)
        if s.decoding:
            own = forced.get(n) != len(s.tokens)  # a sequence that had to wait still has what it was given
            if trace.check_drafts and s.drafts and own and s.generated % 4 == 1:
                seen["drafts compared"] += 1
                seen["drafts compared after a hit"] += bool(s.cached) and s.generated == 1
                right, history = drafts_after(trace.model, n, len(s.tokens))
                assert s.drafts == right[: len(s.drafts)]
                pairs = zip(draft_history(e, s), history, strict=True)
                assert all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in pairs)
            if n in trace.forced:
                known = [t.token for t in solo(trace.model, n).tokens][s.generated :]
                known += [1] * 9  # beyond an end token
                forced[n] = len(s.tokens)
                s.drafts = force(trace.forced[n], known[: s.draft_room()], step)
        before.append((s, s.decoding, s.drafts, len(s.tokens), s.accepted))
    preempted = watch_preemption(e)
    out = e.step()
    seen["preempted"] += len(preempted)
    for s, decoding, given, length, accepted in before:
        new = s.tokens[length:]
        if decoding and s.finish is None and new:  # it had its turn
            depth = len(commonprefix([given, new]))
            assert s.accepted - accepted == depth == len(new) - 1
            seen["accepted of", len(given)] += depth
            seen["own drafts accepted"] += depth * (int(s.request.id) not in trace.forced)
            seen["rejected at", depth] += depth < len(given)
    seen["steps"] += 1
    seen["mixed steps"] += len({decoding for _, decoding, *_ in before}) == 2
    return out


def watch_preemption(e: Engine) -> list[Sequence]:
    """The sequences that the next step preempts; one may be back in the state when the step is over."""
    found = []

    def preempt(s: Sequence, step: list[Rows]) -> None:
        found.append(s)
        Scheduler._preempt(e.scheduler, s, step)

    e.scheduler._preempt = preempt  # type: ignore[method-assign]
    return found


def compare(answer: Answer, wanted: Answer, r: Request) -> None:
    assert answer.last is not None and wanted.last is not None and answer.last.stats is not None
    cancelled = answer.last.finish_reason == "cancelled"
    assert len(answer.tokens) == len(wanted.tokens) or cancelled
    for a, b in zip(answer.tokens, wanted.tokens, strict=False):
        assert a.token == b.token, r
        assert a.logprob is not None and b.logprob is not None and abs(a.logprob - b.logprob) < 1e-9
        assert [i for i, _ in a.top] == [i for i, _ in b.top]
        assert all(abs(p - q) < 1e-9 for (_, p), (_, q) in zip(a.top, b.top, strict=True))
    stats = answer.last.stats
    assert stats.completion_tokens == len(answer.tokens) and stats.prompt_tokens == len(r.prompt)
    assert 0 <= stats.accepted <= stats.drafted
    if not cancelled:
        assert (answer.last.finish_reason, answer.last.stop_token) == (
            wanted.last.finish_reason,
            wanted.last.stop_token,
        )


def compare_near(answer: Answer, wanted: Answer, r: Request, model: int) -> bool:
    """`compare` for float32. Whether a token differs; then every token of the answer is shown to be all but a tie."""
    assert answer.last is not None
    tokens, right = ([t.token for t in a.tokens] for a in (answer, wanted))
    if tokens == right or (answer.last.finish_reason == "cancelled" and tokens == right[: len(tokens)]):
        pairs = zip(answer.tokens, wanted.tokens, strict=False)
        assert all(abs((a.logprob or 0) - (b.logprob or 0)) < 1e-3 for a, b in pairs)
        return False
    end = [answer.last.stop_token] if answer.last.stop_token is not None else []
    near.check(tiny_model(model, exact=False), tiny_model(model), r, [*tokens, *end], ENDS)
    return True
