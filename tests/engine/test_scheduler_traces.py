"""The scheduler against the naive one on random traffic, and proof that the traffic sees planted faults. No torch."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from nextfit.engine import scheduler
from nextfit.engine.config import EngineConfig
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.engine.scheduler import Scheduler
from nextfit.engine.sequence import Sequence
from tests.engine.naive_schedule import Job, NaiveSchedule

CONTEXT = 64


class Traffic:
    """Requests come, go and are computed; after every step both schedulers must have decided the same."""

    def __init__(self, seed: int, kind: type[Scheduler] = Scheduler) -> None:
        self.random = r = random.Random(seed)
        self.config = EngineConfig(
            context=CONTEXT,
            sequences=r.choice([1, 2, 3, 5, 8]),
            page_size=r.choice([4, 8, 16]),
            kv_tokens=r.choice([64, 100, 200, 400]),
            prefill_chunk=r.choice([2, 5, 16, 64]),
            decode_gap=r.choice([1, 3, 9]),
            answer_reserve=r.choice([1, 7, 20, 4096]),
            snapshots=0,
        )
        self.scheduler, self.naive = kind(self.config), NaiveSchedule(self.config)
        self.jobs: dict[Sequence, Job] = {}
        self.order = self.operations = 0

    def run(self, operations: int) -> Counter[str]:
        while self.operations < operations:
            self.step()
        for s in list(self.jobs):
            self.end(s)
        self.scheduler.check()
        assert self.scheduler.cache.pages.free == self.config.pages()
        assert self.scheduler.slots.free == self.config.sequences
        return Counter(self.naive.seen)

    def step(self) -> None:
        r = self.random
        while len(self.naive.waiting) < 4 and r.random() < 0.3:
            self.add()
        if self.jobs and r.random() < 0.03:
            self.end(r.choice(list(self.jobs)))
            self.naive.note("cancelled")
        wanted, step = self.naive.schedule(), self.scheduler.schedule()
        self.operations += 1 + len(step)
        assert {r.sequence.order: (r.count, r.decode) for r in step} == {
            j.order: (n, j.decodes) for j, n in wanted.items()
        }
        assert step or not self.jobs, "nothing is computed although there is work"
        self.compare()
        for row in step:
            self.advance(row.sequence, row.count, row.decode)

    def compare(self) -> None:
        s, n = self.scheduler, self.naive
        assert {(x.order, len(x.pages)) for x in s.running} == {(j.order, j.pages) for j in n.running}
        assert [x.order for x in s.waiting] == [
            j.order for j in sorted(n.waiting, key=lambda j: (j.priority, j.order))
        ]
        assert s.cache.pages.free == n.free()
        assert not any(x.computed or x.replay or x.drafts or x.pages or x.slot for x in s.waiting)
        if self.random.random() < 0.2:
            s.check()

    def add(self) -> None:
        r = self.random
        self.operations += 1
        self.order += 1
        prompt = r.choice([1, r.randint(1, 12), r.randint(1, CONTEXT - 1)])
        limit, depth = r.randint(prompt + 1, CONTEXT), r.choice([0, 0, 2, 8])
        priority = r.choice([0, 0, 0, 1, -3])
        params = SamplingParams(priority=priority)
        s = Sequence(
            Request(str(self.order), [1] * prompt, params),
            0,
            depth,
            frozenset(),
            limit,
            self.order,
            [1] * prompt,
        )
        self.scheduler.add(s)
        self.jobs[s] = Job(priority, self.order, prompt, limit, depth, known=prompt)
        self.naive.waiting.append(self.jobs[s])

    def end(self, s: Sequence) -> None:
        self.operations += 1
        self.scheduler.remove(s)
        job = self.jobs.pop(s)
        (self.naive.running if job in self.naive.running else self.naive.waiting).remove(job)

    def advance(self, s: Sequence, count: int, decode: bool) -> None:
        """What a round does: some drafts are right, tokens are chosen, others are drafted."""
        job, r = self.jobs[s], self.random
        last = s.computed + count >= len(s.tokens)
        right = r.randint(1, count) if decode else count
        new = right if decode else int(last)
        s.accept([1] * new)
        s.computed = min(s.computed + right, len(s.tokens) - 1) if last else s.computed + count
        s.replay = right if decode else 0
        s.drafts = [1] * r.randint(0, s.draft_room()) if s.decoding else []
        job.known, job.computed, job.drafts = len(s.tokens), s.computed, len(s.drafts)
        assert job.known <= job.limit
        if s.finish or s.generated and r.random() < 0.02:
            self.end(s)
            self.naive.note("finished")


def test_a_hundred_thousand_operations() -> None:
    started, seen, operations = time.monotonic(), Counter[str](), 0
    for seed in range(100):
        traffic = Traffic(seed)
        seen += traffic.run(1000)
        operations += traffic.operations
    seconds = time.monotonic() - started
    print(f"{operations} operations in {seconds:.1f} s: {dict(seen)}")
    assert operations >= 100_000 and seconds < 60
    covered = ("no slot", "no room", "preempted for pages", "preempted for a higher priority", "stood still")
    assert all(seen[what] >= 20 for what in (*covered, "cancelled", "finished")), seen


MUTANTS = {
    "priorities ignored by who makes room": ("self._last().priority <= s.priority", "True"),
    "equals make room": ("_last().priority <= s", "_last().priority < s"),
    "the first is preempted": ("max(self.running", "min(self.running"),
    "the preempted keep their rows": ("if r.sequence is not s]", "]"),
    "the preempted keep what they computed": ("s.computed, s.replay, s.drafts = 0, 0, []", "pass"),
    "slots are not given back": ("self.slots.give([s.slot])", "pass"),
    "pages are not given back": ("self.cache.pages.give(s.pages)", "pass"),
    "no decode gap": ("prompt_rows(decoding=bool(step))", "prompt_rows(decoding=False)"),
    "the first prompt takes all rows": ("min(budget // left, ", "min(budget, "),
    "rows are not shared by need": ("key=_rows_left)", "key=Sequence.rank)"),
    "every priority has the whole budget": ("budget -= count", "budget -= count if left > 1 else 0"),
    "decoding by arrival": ("if s.decoding), key=Sequence.rank)", "if s.decoding), key=lambda s: s.order)"),
    "drafts have no pages": ("tokens + 1 + s.draft_depth) + 1)", "tokens + 1) + 1)"),
    "the draft head's last row has no page": ("s.draft_depth) + 1)", "s.draft_depth))"),
    "nothing is reserved": ("reserve * (s.generated // reserve + 1)", "0"),
    "reservations do not roll": ("s.generated // reserve + 1", "1"),
    "others' reservations do not count": (
        "+ sum(self._promised(r) - len(r.pages) for r in self.running)",
        "",
    ),
    "those that fit overtake": (
        "<= s.priority:\n                    return",
        "<= s.priority:\n                    break",
    ),
    "nobody stands still": (
        "if last is s:\n                return False",
        "if last is s:\n                return True",
    ),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    was, planted = MUTANTS[fault]
    source = inspect.getsource(scheduler)
    assert was in source, "the line is no longer there"
    names: dict = {"__name__": scheduler.__name__}
    exec(source.replace(was, planted), names)
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        for seed in range(100):
            Traffic(seed, names["Scheduler"]).run(1000)


def test_traffic_needs_no_torch() -> None:
    program = (
        "import sys; from tests.engine.test_scheduler_traces import Traffic; Traffic(1).run(500); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False False\n", "")
