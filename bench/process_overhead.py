"""What the engine's own process costs a step of 8 sequences: `python -m bench.process_overhead [--steps 2000]`.

Both ends of the link in one process, one after the other, so that neither is timed while it waits. The ratios
are to a step of 8 sequences of the bundled model in the same run; absolute times of a shared machine mean little.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from functools import partial

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Sampled, Stats
from nextfit.llm import LLM
from nextfit.server import link, messages
from nextfit.server.metrics import Metrics, Timer
from nextfit.server.process import EngineProcess
from nextfit.server.worker import Worker

SEQUENCES = 8
LIMIT = 0.1  # ms a step on either side


def message_times(steps: int, tokens: int, alternatives: int) -> tuple[float, float, float]:
    """Median ms a step of the engine's side, of the server's side, and of the way between them."""
    clock = time.perf_counter
    top = tuple((i, -1.5) for i in range(alternatives))
    sampled = tuple(Sampled(i, -0.5 if top else None, top) for i in range(tokens))
    stats = Stats(1000, 100, 96, 50, 200, 50)
    outputs = [Output(f"{i:032x}-0", sampled, stats=stats) for i in range(SEQUENCES)]
    worker, loop = Worker(EngineProcess("")), asyncio.new_event_loop()
    queue: asyncio.Queue[object] = asyncio.Queue()
    metrics = Metrics(lambda: None)

    def deliver(timer: Timer, event: object) -> None:
        timer.advance(event)
        loop.call_soon_threadsafe(queue.put_nowait, event)

    for output in outputs:
        worker._waiting[output.request_id] = partial(deliver, Timer(metrics, clock()))
    server = link.listen()
    engine = link.connect(server.folder)
    taken: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(steps):
        times = [clock()]
        engine.receive(0)
        engine.send(messages.Outputs(outputs))
        times.append(clock())
        server._in.poll()
        times.append(clock())
        (event,) = server.receive(0)
        worker._take(event, server)
        times.append(clock())
        loop.call_soon(loop.stop)
        loop.run_forever()
        for times_of, start, end in zip(taken, times, times[1:], strict=False):
            times_of.append((end - start) * 1e3)
    for end in (engine, server):
        end.close()
    loop.close()
    side, way, other = map(statistics.median, taken)
    return side, other, way


def model_step() -> float:
    """Median ms of a decode step of 8 sequences without drafts."""
    llm = LLM(draft=0, context=1024)
    for i in range(SEQUENCES):
        llm.engine.add(Request(str(i), [i + 1], SamplingParams(ignore_eos=True, max_tokens=60)))
    times = []
    while llm.engine.has_work():
        start = time.perf_counter()
        llm.engine.step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    step = model_step()
    print(f"{SEQUENCES} sequences, {steps} steps; a step of the bundled model: {step:.1f} ms")
    print("a step has                          engine's side     server's side     the way between")
    for tokens, alternatives in ((1, 0), (5, 0), (1, 20)):
        times = message_times(steps, tokens, alternatives)
        what = f"{tokens} token(s), {alternatives} alternatives"
        print(f"{what:<32}" + "".join(f"{t:9.3f} ms {t / step:6.2%}" for t in times))
        if alternatives == 0 and max(times[:2]) > LIMIT:
            print(f"  over the limit of {LIMIT} ms on a side")


if __name__ == "__main__":
    main()
