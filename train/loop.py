"""The training loop: stages by the share of time used, so that a run fits the machine time that there is."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train import export, nano
from train.model import Net, Rows, new_parts
from train.stream import TASKS, Packed, Stream

WEIGHT = {"text": 0.1, "index": 0.3, "balance": 0.01, "draft": 0.3}
DRAFTED = (1.0, 0.5)  # weights of the draft head's first token and of its recursion


@dataclass(frozen=True)
class Stage:
    until: float  # share of all training time
    rows: int
    width: int
    sparse: bool
    long: float  # probability of a long text


STAGES = (
    Stage(0.50, 64, 1024, False, 0.0),
    Stage(0.62, 64, 1024, True, 0.0),
    Stage(0.85, 8, 8192, True, 0.05),
    Stage(1.00, 1, 32768, True, 0.05),
)


@dataclass
class Settings:
    out: str
    minutes: float  # of this run
    total: float  # minutes of all runs together
    resume: str | None = None
    seed: int = 1
    device: str = "cuda"
    peak: float = 3e-3
    processes: int = 14
    compiled: bool = True
    longest: int = 32768  # stages with longer rows are left out, for a device with less memory
    scale: float = 1.0  # of rows and widths, for a trial on a CPU
    profile: bool = False


class Trainer:
    """One run: from the initial weights or from a folder's, for some minutes."""

    def __init__(self, s: Settings) -> None:
        self.s, self.c = s, nano.model_config()
        self.out, self.log = Path(s.out), []
        self.before, parts = 0.0, new_parts(self.c, s.seed)
        if s.resume:
            progress = json.loads((Path(s.resume) / "progress.json").read_text())
            self.before, self.log = progress["minutes"], progress["log"]
            parts = export.load(Path(s.resume), self.c, "cpu")
        parts = {k: v.to(s.device).requires_grad_() for k, v in parts.items()}
        dtype = torch.bfloat16 if s.device == "cuda" else torch.float32
        self.net = Net(self.c, parts, dtype, s.compiled)
        flat = [v for k, v in parts.items() if v.ndim < 2 or "embed" in k]
        rest = [v for k, v in parts.items() if not (v.ndim < 2 or "embed" in k)]
        groups = [{"params": flat, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.05}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.97), fused=True)
        self.stream: Stream | None = None
        self.stage: Stage | None = None
        self.steps, self.tokens, self.begun = 0, 0, time.monotonic()
        self.tokens_since = 0
        self.sums = torch.zeros(5 + 3 * len(TASKS) + 2, device=s.device)

    @property
    def share(self) -> float:
        """Of all training time, what is over."""
        return min(1.0, (self.before + (time.monotonic() - self.begun) / 60) / self.s.total)

    def enter(self, stage: Stage) -> None:
        if self.stream:
            self.stream.close()
        f = self.s.scale
        rows, width = max(1, int(stage.rows * f)), max(256, int(stage.width * f) // 64 * 64)
        seed = self.s.seed * 100 + STAGES.index(stage) * 10 + int(self.before)
        self.stream, self.stage = Stream(seed, rows, width, stage.long, self.s.processes), stage

    def rate(self) -> float:
        """A short warm-up of every run, then falling to a twentieth over all training time."""
        return self.s.peak * min(1.0, (self.steps + 1) / 200) * (1 - 0.95 * self.share)

    def loss(self, batch: Packed) -> Tensor:
        s, stage = self.s, self.stage
        assert stage
        tokens, position, task = (
            torch.from_numpy(x.astype("int64")).to(s.device, non_blocking=True)
            for x in (batch.tokens, batch.position, batch.task)
        )
        asked = max(8, 4096 // len(tokens) // 4)
        rows = Rows.of(self.c, position, asked, stage.sparse, self.net.dtype)
        x, index, balance = self.net.streams(tokens, rows)
        following, asks = tokens.roll(-1, 1), task.roll(-1, 1)
        inside = position.roll(-1, 1) > position  # the next token is of the same conversation
        loss, right = self.net.losses(x, following)
        answer = (asks > 0) & inside
        text = (asks == 0) & inside & (following != self.c.eos_token_id)
        total = mean(loss, answer) + WEIGHT["text"] * mean(loss, text)
        z, hits, drafts, after = x, answer, 0.0, following
        for weight in DRAFTED:
            z, more, b = self.net.draft(z, after, rows)
            index, balance = index + more, balance + b
            after, hits = after.roll(-1, 1), hits & answer.roll(-1, 1)
            d, guessed = self.net.losses(z, after, draft=True)
            drafts = (
                drafts + weight * mean(d, hits) + weight * WEIGHT["text"] * mean(d, text & text.roll(-1, 1))
            )
            self.sums[-2 if weight == DRAFTED[0] else -1] += mean(guessed.float(), hits).detach()
            answer = answer.roll(-1, 1)
        total = total + WEIGHT["draft"] * drafts + WEIGHT["index"] * index + WEIGHT["balance"] * balance
        self.note(loss.detach(), right, asks * inside, text, index, balance, drafts)
        return total

    def note(self, loss: Tensor, right: Tensor, task: Tensor, text: Tensor, *others: Any) -> None:
        with torch.no_grad():
            head = [torch.ones((), device=loss.device), mean(loss, text), *(o.detach() for o in others)]
            self.sums[:5] += torch.stack(head)
            flat = task.flatten()
            for i, value in enumerate((torch.ones_like(loss), loss, right.float())):
                counts = torch.zeros(1 + len(TASKS), device=loss.device).index_add_(0, flat, value.flatten())
                self.sums[5 + i * len(TASKS) : 5 + (i + 1) * len(TASKS)] += counts[1:]

    def step(self) -> None:
        assert self.stream
        batch = self.stream.next()
        self.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(list(self.net.parts.values()), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.tokens.size

    def report(self, since: float) -> None:
        """One line of the log, and of the screen."""
        assert self.stream and self.stage
        v, n = self.sums.tolist(), len(TASKS)
        steps = max(1.0, v[0])
        tasks = {
            t: {"loss": v[5 + n + i] / max(1, v[5 + i]), "right": v[5 + 2 * n + i] / max(1, v[5 + i])}
            for i, t in enumerate(TASKS)
        }
        entry = {
            "share": self.share, "steps": self.steps, "tokens": self.tokens, "speed": self.tokens_since / since,
            "again": self.stream.again / max(1, self.stream.again + self.stream.fresh), "width": self.stage.width,
            "sparse": self.stage.sparse, "text": v[1] / steps, "index": v[2] / steps, "balance": v[3] / steps,
            "draft": v[4] / steps, "drafted": [v[-2] / steps, v[-1] / steps], "tasks": tasks,
        }  # fmt: skip
        self.log.append(entry)
        done = int(30 * self.share)
        drafts = "/".join(f"{100 * d:.0f}" for d in entry["drafted"])
        shown = " ".join(f"{t[:5]} {x['loss']:.3f}/{100 * x['right']:.1f}" for t, x in tasks.items())
        print(
            f"[{'#' * done}{'.' * (30 - done)}] {100 * self.share:5.1f}% step {self.steps} "
            f"{entry['speed'] / 1e3:.0f}k tok/s again {100 * entry['again']:.0f}% text {entry['text']:.2f} "
            f"index {entry['index']:.2f} drafts {drafts} {shown}",
            flush=True,
        )
        self.sums.zero_()

    def save(self) -> None:
        export.save(self.out, self.c, self.net.parts)
        minutes = self.before + (time.monotonic() - self.begun) / 60
        settings = {k: v for k, v in asdict(self.s).items() if k not in ("out", "resume", "profile")}
        nano.write_json(
            self.out / "progress.json",
            {"minutes": minutes, "settings": settings, "torch": torch.__version__, "log": self.log},
        )

    def run(self) -> None:
        end = self.begun + 60 * self.s.minutes
        last = saved = time.monotonic()
        self.tokens_since = 0
        while (now := time.monotonic()) < end and self.share < 1:
            short = [x for x in STAGES if x.width <= self.s.longest]
            stage = next((x for x in short if self.share < x.until), short[-1])
            if stage is not self.stage:
                self.enter(stage)
            before = self.tokens
            self.step()
            self.tokens_since += self.tokens - before
            if self.steps % 20 == 0 and not math.isfinite(float(self.sums[1])):
                raise SystemExit("the loss is not finite")
            if now - last > 10 or self.steps <= 2:
                self.report(time.monotonic() - last)
                last, self.tokens_since = time.monotonic(), 0
            if now - saved > 100:
                self.save()
                saved = time.monotonic()
        if self.sums[0] > 0:
            self.report(time.monotonic() - last)
        self.save()
        assert self.stream
        self.stream.close()


def mean(x: Tensor, where: Tensor) -> Tensor:
    return (x * where).sum() / where.sum().clamp_min(1)


def main(s: Settings) -> None:
    torch.manual_seed(s.seed)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    trainer = Trainer(s)
    if s.profile:
        return profile(trainer)
    trainer.run()


def profile(trainer: Trainer) -> None:
    """Where a step's time goes, for every stage."""
    for stage in STAGES:
        trainer.enter(stage)
        began = time.monotonic()
        for _ in range(2):
            trainer.step()
        torch.cuda.synchronize()
        print(f"{stage}: first steps {time.monotonic() - began:.1f} s", flush=True)
        with torch.profiler.profile() as p:
            began = time.monotonic()
            for _ in range(5):
                trainer.step()
            torch.cuda.synchronize()
            took = (time.monotonic() - began) / 5
        print(f"{1e3 * took:.1f} ms a step, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
        print(
            p.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=60),
            flush=True,
        )
        assert trainer.stream
        trainer.stream.close()
