"""Asks a model the cases, several lanes at once, and reads what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from nextfit.accept.case import Case, Lane, Message
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request
from nextfit.errors import ConfigError
from nextfit.llm import LLM
from nextfit.text import MarkupReader, TextStream, Tools
from nextfit.text.events import Reply

LONGEST = 400  # tokens of an answer: what has not ended by then does not end by itself


@dataclass(frozen=True)
class Answer:
    """What a case's last turn brought; counts are of all its turns."""

    case: Case
    reply: Reply
    passed: bool
    ended: bool  # every turn by itself
    tokens: int
    cached_tokens: int
    prompt_tokens: int
    accepted: tuple[int, ...]  # drafts of each round but a turn's last, which its end may have cut


@dataclass
class _Turn:
    """An answer on its way."""

    stream: TextStream
    reply: Reply = field(default_factory=Reply)
    sizes: list[int] = field(default_factory=list)  # tokens that each step gave
    tokens: int = 0

    def push(self, output: Output) -> None:
        self.tokens += len(output.tokens)
        self.sizes.append(len(output.tokens))
        for event in self.stream.push(t.token for t in output.tokens).events:
            self.reply.add(event)
        if output.finish_reason is not None:
            for event in self.stream.finish(cut=output.finish_reason == "length").events:
                self.reply.add(event)


def _assistant(reply: Reply) -> Message:
    """A turn's answer as the next turn's prompt has it."""
    return {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning}


class _Player:
    """Plays one lane: its cases one after the other, each turn by turn."""

    def __init__(self, number: int, lane: Lane, llm: LLM, params: SamplingParams) -> None:
        self._number, self._llm, self._params = number, llm, params
        self._cases = iter(enumerate(lane))
        self.answers: list[Answer] = []
        self._turn: _Turn | None = None

    def next_case(self) -> bool:
        """Begin the next case; False if there is none."""
        found = next(self._cases, None)
        if found is None:
            return False
        self._index, self._case = found
        self._messages: list[Message] = []
        self._left = list(self._case.messages)
        self._ended, self._tokens, self._cached, self._prompt = True, 0, 0, 0
        self._accepted: list[int] = []
        self._ask()
        return True

    def _ask(self) -> None:
        """Send the messages up to the next that somebody is to answer."""
        while self._left:
            self._messages.append(self._left.pop(0))
            answered = self._left and self._left[0]["role"] in ("assistant", "tool")
            if self._messages[-1]["role"] != "assistant" and not answered:
                break
        template, tokenizer = self._llm.template, self._llm.tokenizer
        assert template is not None
        text = template.render(self._messages, self._case.tools or None, **self._case.options)
        thinking = text.rstrip().endswith("<think>")
        ids = tokenizer.encode(text)
        reader = MarkupReader(Tools(self._case.tools), thinking=thinking, single=False)
        self._turn = _Turn(TextStream(tokenizer, (), reader))
        seed = None if self._params.greedy else 1000 * self._number + self._index
        self._llm.engine.add(Request(f"{self._number}", ids, replace(self._params, seed=seed)))

    def push(self, output: Output) -> Answer | None:
        """Take an output; the case's answer when it was the last of it."""
        turn = self._turn
        assert turn is not None
        turn.push(output)
        if output.finish_reason is None:
            return None
        assert output.stats is not None
        self._ended &= output.finish_reason == "stop"
        self._tokens += turn.tokens
        self._cached += output.stats.cached_tokens
        self._prompt += output.stats.prompt_tokens
        self._accepted += [n - 1 for n in turn.sizes[1:-1]]  # the first comes with the prompt
        if self._left:
            self._messages.append(_assistant(turn.reply))
            self._ask()
            return None
        return Answer(
            self._case, turn.reply, self._case.right(turn.reply), self._ended,
            self._tokens, self._cached, self._prompt, tuple(self._accepted),
        )  # fmt: skip


def ask(
    llm: LLM, lanes: Sequence[Lane], params: SamplingParams, width: int, done: Callable[[Answer], None]
) -> Iterator[Answer]:
    """Answers as they come, `done` called with each; `width` lanes at once."""
    if llm.template is None:
        raise ConfigError("the checkpoint has no chat template, so it cannot be asked")
    params = replace(params, max_tokens=LONGEST)
    waiting = [_Player(i, lane, llm, params) for i, lane in reversed(list(enumerate(lanes)))]
    playing: dict[str, _Player] = {}
    while waiting or playing:
        while waiting and len(playing) < width:
            player = waiting.pop()
            if player.next_case():
                playing[str(len(lanes) - len(waiting) - 1)] = player
        for output in llm.engine.step():
            player = playing[output.request_id]
            answer = player.push(output)
            if answer is not None:
                done(answer)
                yield answer
                if not player.next_case():
                    del playing[output.request_id]
