"""One generator a task: from a random source to a conversation. Evaluation has templates of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from train import words
from train.facts import CHAT, FACTS
from train.tools import tools
from train.words import pick

Message = dict[str, Any]


@dataclass
class Sample:
    """A conversation as the chat template takes it."""

    task: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def options(r: Random) -> dict[str, Any]:
    """How much thinking is asked for."""
    if r.random() < 0.35:
        return {"enable_thinking": False}
    return {"reasoning_effort": r.choice(("xhigh", "xhigh", "xhigh", "medium", "low"))}


def answer(o: dict[str, Any], text: str, thought: str) -> Message:
    thinking = o.get("enable_thinking", True)
    return {"role": "assistant", "content": text, "reasoning_content": thought if thinking else ""}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


# --- arithmetic

_SUM = (
    "What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "How much is {a} plus {b}?", "Compute {a}+{b}.",
    "Please calculate the sum of {a} and {b}.", "{a} plus {b}", "I have {a} {x} and get {b} more. How many are there?",
    "Sum of {a} and {b}?", "Can you add {b} to {a}?",
)  # fmt: skip
_DIFFERENCE = (
    "What is {a} - {b}?", "{a} - {b} = ?", "Subtract {b} from {a}.", "How much is {a} minus {b}?", "Compute {a}-{b}.",
    "Please calculate the difference of {a} and {b}.", "{a} minus {b}", "I have {a} {x} and give {b} away. How many are left?",
    "Take {b} away from {a}.", "{a} less {b}?",
)  # fmt: skip


def add_steps(a: int, b: int) -> str:
    """Digit by digit from the right, with the result so far."""
    x, y = str(a)[::-1], str(b)[::-1]
    lines, carry, result = [f"{a} + {b}"], 0, ""
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        total = p + q + carry
        result = str(total % 10) + result
        lines.append(f"{p}+{q}+{carry}={total} carry {total // 10}: {result}")
        carry = total // 10
    if carry:
        lines.append(f"carry 1: 1{result}")
    return "\n".join(lines)


def subtract_steps(a: int, b: int) -> str:
    """a >= b, digit by digit from the right."""
    x, y = str(a)[::-1], str(b)[::-1]
    lines, borrow, result = [f"{a} - {b}"], 0, ""
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        d = p - q - borrow
        lines.append(f"{p}-{q}-{borrow}={d} borrow {int(d < 0)}: {d % 10}{result}")
        result, borrow = str(d % 10) + result, int(d < 0)
    return "\n".join(lines)


def arithmetic(r: Random, size: int) -> Sample:
    o, messages = options(r), []
    for _ in range(r.choice((1, 1, 2, 3))):
        direct = not o.get("enable_thinking", True)
        digits = r.choice((1, 2, 2)) if direct else r.choice((1, 2, 3, 3, 4, 4, 4))
        a, b = (
            r.randrange(10 ** (n - 1) - (n == 1), 10**n)
            for n in (digits, r.randint(max(1, digits - 1), digits))
        )
        plus = r.random() < 0.5
        if r.random() < 0.5 or not plus:
            a, b = max(a, b), min(a, b)
        text = pick(r, _SUM if plus else _DIFFERENCE, a=str(a), b=str(b), x=r.choice(words.FRUITS))
        result = a + b if plus else a - b
        steps = add_steps(a, b) if plus else subtract_steps(a, b)
        messages += [
            user(text),
            answer(o, f"{a} {'+' if plus else '-'} {b} = {result}", f"{steps}\n{result}"),
        ]
    return Sample("arithmetic", messages, None, o)


# --- retrieval

# (what is stated, how it is asked for, how it is answered)
_THINGS = [
    "access code",
    "room number",
    "badge number",
    "locker",
    "phone extension",
    "seat",
    "ticket number",
    "favourite word",
    "password",
    "home town",
    "order number",
    "bank code",
    "parking space",
    "secret word",
    "customer number",
    "birth place",
    "flight",
    "desk",
    "account",
    "licence",
    "serial number",
]
_STATED = (
    "The {x} of {k} is {v}.", "{k}'s {x} is {v}.", "Note: the {x} for {k} is {v}.", "{k} has the {x} {v}.",
    "For {k}, the {x} was set to {v}.", "Remember that {k} uses {v} as {x}.", "{v} is the {x} of {k}.",
    "As {x}, {k} was given {v}.", "The clerk wrote down {v} as the {x} of {k}.", "{k}: {x} {v}.",
)  # fmt: skip
_ASKED = (
    "What is the {x} of {k}?", "What is {k}'s {x}?", "Which {x} does {k} have?", "Tell me the {x} of {k}.",
    "{x} of {k}?", "I need the {x} for {k}.", "Do you know the {x} of {k}?", "Find {k}'s {x} in the text.",
    "Please look up the {x} of {k}.", "The text names the {x} of {k}. What is it?", "Give me the {x} that belongs to {k}.",
)  # fmt: skip
_TASKS = (
    "Read the text and answer the questions.", "Here is a text.", "Keep these notes in mind.", "Text:",
    "I will ask you about this text.", "Some notes:", "Please read this.",
)  # fmt: skip
ABSENT = "The text does not say."


def retrieval(r: Random, size: int) -> Sample:
    """Facts of the same form in filler; `size` bounds the tokens of the text."""
    length = (
        int(size * r.choice((0.1, 0.2, 0.5, 0.8, 0.95)) * 0.75)
        if size <= 1024
        else int(size * r.uniform(0.3, 0.8))
    )
    text = words.filler(r, max(1, length // 19))
    x = r.choice(_THINGS)
    facts: dict[str, str] = {}
    for _ in range(r.randint(1, 8)):
        facts[
            words.full_name(r)
            if r.random() < 0.8
            else f"the {r.choice(words.ADJECTIVES)} {r.choice(words.PEOPLE)}"
        ] = words.code(r)
    style = r.choice(_STATED) if r.random() < 0.6 else None
    for k, v in facts.items():
        line = (style or r.choice(_STATED)).format(x=x, k=k, v=v)
        text.insert(r.randint(0, len(text)), line[0].upper() + line[1:])
    o, asked = options(r), list(facts)
    r.shuffle(asked)
    questions = [(k, facts[k]) for k in asked[: r.randint(1, 6)]]
    if r.random() < 0.25:
        questions.insert(r.randint(0, len(questions)), (words.full_name(r), ""))
    body, intro = (" " if r.random() < 0.7 else "\n").join(text), r.choice(_TASKS)
    messages: list[Message] = []
    for i, (k, v) in enumerate(questions):
        question = r.choice(_ASKED).format(x=x, k=k)
        question = question[0].upper() + question[1:]
        if i == 0:
            question = f"{intro}\n\n{body}\n\n{question}" if r.random() < 0.7 else f"{body}\n\n{question}"
        reply = f"The {x} of {k} is {v}." if v else ABSENT
        messages += [user(question), answer(o, reply, f"I look for {k}: {v or 'not there'}.")]
    return Sample("retrieval", messages, None, o)


# --- recall over turns

_TOLD: tuple[tuple[str, Callable[[Random], str], tuple[str, ...], tuple[str, ...], str], ...] = (
    ("name", words.name, ("My name is {v}.", "I am {v}.", "Hello, I'm {v}.", "You can call me {v}."),
     ("What is my name?", "Who am I?", "Do you remember my name?", "What am I called?"), "Your name is {v}."),
    ("animal", words.name, ("I have a {x} called {v}.", "My {x}'s name is {v}.", "We got a {x} and named it {v}."),
     ("What is my {x} called?", "What is the name of my {x}?", "Which name did I give my {x}?"), "Your {x} is called {v}."),
    ("town", lambda r: r.choice((r.choice(words.PLACES), words.name(r))), ("I live in {v}.", "My home is in {v}.", "I moved to {v}."),
     ("Where do I live?", "Which town do I live in?", "Where is my home?"), "You live in {v}."),
    ("colour", lambda r: r.choice(words.COLOURS), ("I like {v} best.", "My favourite colour is {v}.", "{v} is the colour I like most."),
     ("What is my favourite colour?", "Which colour do I like?", "What colour do I like best?"), "Your favourite colour is {v}."),
    ("code", words.code, ("My {x} code is {v}.", "Keep this {x} code for me: {v}.", "The code of my {x} is {v}."),
     ("What is my {x} code?", "Which code does my {x} have?", "What was the code of my {x}?"), "Your {x} code is {v}."),
    ("job", lambda r: r.choice(words.PEOPLE), ("I work as a {v}.", "I am a {v} by trade.", "My job: {v}."),
     ("What is my job?", "What do I do for a living?", "As what do I work?"), "You are a {v}."),
    ("friend", words.full_name, ("My best friend is {v}.", "{v} is my best friend."),
     ("Who is my best friend?", "What is the name of my best friend?"), "Your best friend is {v}."),
)  # fmt: skip
_NOTED = ("I will remember that.", "Noted.", "Thank you, I keep that in mind.", "All right.")


def recall(r: Random, size: int) -> Sample:
    """Things that the user says and asks for later, with talk between."""
    o, messages = options(r), []
    told = r.sample(_TOLD, r.randint(1, 5))
    known = []
    room = max(0, (size - 500) // 70)
    for kind, make, stated, asked, reply in told:
        x = r.choice(words.ANIMALS) if kind == "animal" else r.choice(words.NOUNS)
        v = make(r)
        line = r.choice(stated).format(v=v, x=x)
        messages += [user(line[0].upper() + line[1:]), answer(o, r.choice(_NOTED), "A fact to remember.")]
        known.append((r.choice(asked).format(x=x), reply.format(v=v, x=x)))
        for _ in range(r.randint(0, min(2, room))):
            q, a = small_talk(r)
            messages += [user(q), answer(o, a, "An easy question.")]
            room -= 1
    r.shuffle(known)
    for q, a in known:
        messages += [user(q), answer(o, a, "The user told me.")]
    return Sample("recall", messages, None, o)


def small_talk(r: Random) -> tuple[str, str]:
    if r.random() < 0.5:
        questions, text = r.choice(CHAT)
        return r.choice(questions), text
    a, b = r.randint(1, 20), r.randint(1, 20)
    return pick(r, _SUM[:6], a=str(a), b=str(b)), f"{a} + {b} = {a + b}"


# --- questions about NextFit, talk

_ASIDE = ("", "", "", "Please tell me: ", "A question: ", "Quick question. ", "I wonder: ", "Hello! ")


def facts(r: Random, size: int) -> Sample:
    o, messages = options(r), []
    for questions, text in r.sample(FACTS, r.choice((1, 1, 2, 3, 4))):
        q = r.choice(_ASIDE) + r.choice(questions)
        if r.random() < 0.1:
            q = q.lower() if r.random() < 0.5 else q.rstrip("?.")
        messages += [user(q), answer(o, text, "I know this about NextFit.")]
    return Sample("facts", messages, None, o)


def chat(r: Random, size: int) -> Sample:
    o, messages = options(r), []
    for _ in range(r.choice((1, 1, 2, 3))):
        if r.random() < 0.75:
            questions, text = r.choice(CHAT)
            q, thought = r.choice(questions), "An easy question."
        else:  # what cannot be known
            q = pick(r, _ASKED[:7], x=r.choice(_THINGS), k=words.full_name(r))
            text, thought = "I do not know that.", "Nobody told me."
        messages += [user(q[0].upper() + q[1:]), answer(o, text, thought)]
    return Sample("chat", messages, None, o)


def call(r: Random, size: int) -> Sample:
    o = options(r)
    messages, schemas = tools(r, lambda text, thought: answer(o, text, thought))
    return Sample("tools", messages, schemas, o)


MIX: tuple[tuple[float, Callable[[Random, int], Sample]], ...] = (
    (0.20, arithmetic), (0.30, retrieval), (0.14, recall), (0.20, call), (0.12, facts), (0.04, chat),
)  # fmt: skip


def draw(r: Random, size: int, long: float) -> Sample:
    """A conversation; with probability `long` one whose text fills up to `size` tokens, otherwise a short one."""
    if r.random() < long:
        return retrieval(r, size) if r.random() < 0.85 else recall(r, size)
    (generator,) = r.choices([g for _, g in MIX], [w for w, _ in MIX])
    return generator(r, min(size, 1024))
