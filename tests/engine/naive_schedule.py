"""What the scheduler must do, written down a second time: slowly, with counts instead of pages, no prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from nextfit.engine.config import EngineConfig


@dataclass(eq=False)
class Job:
    """A request of `prompt` tokens that may become `limit` long."""

    priority: int
    order: int
    prompt: int
    limit: int
    depth: int
    known: int = 0
    computed: int = 0
    drafts: int = 0
    pages: int = 0

    @property
    def decodes(self) -> bool:
        return self.prompt < self.known == self.computed + 1


@dataclass
class NaiveSchedule:
    config: EngineConfig
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def free(self) -> int:
        return self.config.pages() - sum(j.pages for j in self.running)

    def pages(self, job: Job, tokens: int) -> int:
        """For `tokens`, the next one, its drafts, and the draft head's place behind the last of these."""
        slots = min(tokens + 1 + job.depth, job.limit) + 1
        return (slots + self.config.page_size - 1) // self.config.page_size

    def promised(self, job: Job) -> int:
        """Pages once everything is generated that the job has room for: whole reserves, one more than are used up."""
        end = job.prompt
        while end <= job.known:
            end += self.config.answer_reserve
        return max(job.pages, self.pages(job, end + job.depth))

    def worst(self) -> Job:
        return sorted(self.running, key=lambda j: (j.priority, j.order))[-1]

    def preempt(self, job: Job, step: dict[Job, int], why: str) -> None:
        self.note(why)
        self.running.remove(job)
        self.waiting.append(job)
        step.pop(job, None)
        job.computed = job.pages = job.drafts = 0

    def schedule(self) -> dict[Job, int]:
        """Rows of each job in the next step."""
        step: dict[Job, int] = {}
        for job in sorted(self.running, key=lambda j: (j.priority, j.order)):
            if job.decodes and job in self.running and self.grow(job, step):
                step[job] = 1 + job.drafts
        self.admit(step)
        budget = self.config.prefill_chunk
        if step:
            budget = min(budget, self.config.decode_gap)
        prompts = [j for j in self.running if not j.decodes]
        for priority in sorted({j.priority for j in prompts}):
            equal = sorted((j for j in prompts if j.priority == priority), key=lambda j: j.order)
            dealt = self.deal(equal[:budget], budget)
            step |= dealt
            budget -= sum(dealt.values())
        return step

    def grow(self, job: Job, step: dict[Job, int]) -> bool:
        wanted = self.pages(job, job.known + job.drafts)
        while wanted - job.pages > self.free():
            if self.worst() is job:
                self.note("stood still")
                return False
            self.preempt(self.worst(), step, "preempted for pages")
        job.pages = max(job.pages, wanted)
        return True

    def admit(self, step: dict[Job, int]) -> None:
        for job in sorted(self.waiting, key=lambda j: (j.priority, j.order)):
            while not self.fits(job):
                if not self.running or self.worst().priority <= job.priority:
                    return
                self.preempt(self.worst(), step, "preempted for a higher priority")
            self.waiting.remove(job)
            self.running.append(job)
            job.pages = self.pages(job, job.known)

    def fits(self, job: Job) -> bool:
        if len(self.running) == self.config.sequences:
            self.note("no slot")
            return False
        promised = sum(self.promised(j) for j in [*self.running, job])
        if promised > self.config.pages():
            self.note("no room")
        return promised <= self.config.pages()

    @staticmethod
    def deal(jobs: list[Job], budget: int) -> dict[Job, int]:
        """Row by row in turns, those with the longest way to go first."""
        dealt = dict.fromkeys(sorted(jobs, key=lambda j: (j.known - j.computed, j.order), reverse=True), 0)
        while budget and any(n < j.known - j.computed for j, n in dealt.items()):
            for j in dealt:
                if budget and dealt[j] < j.known - j.computed:
                    dealt[j] += 1
                    budget -= 1
        return dealt
