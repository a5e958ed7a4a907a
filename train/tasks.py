"""One generator a task: from a random source to a conversation. Evaluation has templates of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from train import forms, words
from train.facts import CHAT, FACTS, FRAMES, UNKNOWN
from train.say import asked, say, say_one
from train.tools import tools

Message = dict[str, Any]
Turn = tuple[str, str, str]  # question, thought, answer


@dataclass
class Sample:
    """A conversation as the chat template takes it."""

    task: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def options(r: Random) -> dict[str, Any]:
    """How much thinking is asked for."""
    if r.random() < 0.25:
        return {"enable_thinking": False}
    return {"reasoning_effort": r.choice(("xhigh", "xhigh", "xhigh", "medium", "low"))}


def answer(o: dict[str, Any], text: str, thought: str) -> Message:
    thinking = o.get("enable_thinking", True)
    return {"role": "assistant", "content": text, "reasoning_content": thought if thinking else ""}


def turn(o: dict[str, Any], t: Turn) -> list[Message]:
    question, thought, text = t
    return [{"role": "user", "content": question}, answer(o, text, thought)]


# --- arithmetic

_SUM = (
    "[What is|What's|How much is|What do you get for|Compute|Calculate|Work out|Evaluate|Solve|Give me|Find] {a}[ + |+| plus | and ]{b}[?|.||, please.]", "{a}[ + |+| plus ]{b}[ = ?| =|=|=?|?| is| equals| makes]",
    "Add {a} [and|to|with] {b}[.||, please.]", "[Compute|Calculate|Find|Give me|What is|Tell me|Please calculate] the [sum|total] of {a} and {b}[?|.]", "[Sum|Total] of {a} and {b}[?|]", "[Can|Could|Would] you add {b} to {a}?",
    "[I|We|They|{n}] [have|had|own|owned|count|counted] {a} {x} and [get|got|buy|bought|find|found|receive|received|take|add] {b} more. How many [are there|are there now|is that|do we have|are there in all|does that make]?",
    "{n} has {a} {x} and {m} has {b}[ {x}|]. How many [do they have|have they|are there|are these] [together|in all|in total|altogether]?", "There are {a} {x} [here|in the {y}|on the {y}] and {b} [there|in another {y}|elsewhere]. How many [in total|altogether|are there in all]?",
    "[Put|Take] {a} and {b} together[.|: how much?|, what is it?]", "Increase {a} by {b}.", "[What is|How much is] {b} more than {a}?", "A {y} costs {a} and a {z} costs {b}. What do [both|they|the two] cost[| together]?",
    "What [number |]is [{b} larger than|{b} above|{b} greater than] {a}?", "If I [add|put] {b} to {a}, what [is it|do I get|comes out|is the result]?", "{a} [people|men|{x}] come, then {b} more [come|arrive]. How many are [here|there|that]?",
    "{a}, and {b} on top[.|?|: how much?]", "The [result|value|answer] of {a}[ + |+| plus ]{b}[?| is]",
)  # fmt: skip
_DIFFERENCE = (
    "[What is|What's|How much is|What do you get for|Compute|Calculate|Work out|Evaluate|Solve|Give me|Find] {a}[ - |-| minus | less | take away ]{b}[?|.||, please.]", "{a}[ - |-| minus ]{b}[ = ?| =|=|=?|?| is| equals| makes]",
    "[Subtract|Deduct|Take|Remove] {b} from {a}[.||, please.]", "[Compute|Calculate|Find|Give me|What is|Tell me|Please calculate] the difference [of {a} and {b}|between {a} and {b}][?|.]", "Difference of {a} and {b}[?|]", "[Can|Could|Would] you [subtract|take] {b} from {a}?",
    "[I|We|They|{n}] [have|had|own|owned] {a} {x} and [give|gave|sell|sold|lose|lost|eat|throw|threw|lend] {b}[| away| of them]. How many are [left|left over|there now]?", "{n} has {a} {x}, {m} has {b}. How many more has {n}[| than {m}]?",
    "Take {b} away from {a}.", "[Reduce|Decrease|Lower] {a} by {b}.", "What [number |]is [{b} smaller than|{b} below|{b} less than] {a}?", "[Of|From] {a} {x}, {b} are [gone|sold|lost|broken|taken away]. How many [remain|stay|are left]?",
    "If I [subtract|take|remove] {b} from {a}, what [is left|do I get|remains|is the result]?", "There were {a} {x} and {b} [went|were taken|disappeared|were sold]. What [remains|is left]?", "By how much is {a} [larger|greater|more] than {b}?",
    "I pay {b} of {a}. [What|How much] [is left|remains|do I still have]?", "How far is it from {b} to {a}?", "What must be added to {b} to [get|make|reach] {a}?", "The [result|value|answer] of {a}[ - |-| minus ]{b}[?| is]",
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


def calculation(r: Random, thinking: bool, digits: int) -> Turn:
    a, b = (
        r.randrange(10 ** (n - 1) - (n == 1), 10**n)
        for n in (digits, digits if r.random() < 0.5 else r.randint(1, digits))
    )
    plus = r.random() < 0.5
    if r.random() < 0.5 or (not plus and r.random() < 0.8):
        a, b = max(a, b), min(a, b)
    spelled = r.random() < 0.08
    line = forms.story(r, str(a), str(b), plus) if r.random() < 0.5 else say_one(
        r, _SUM if plus else _DIFFERENCE, a=words.spelled(a) if spelled else str(a),
        b=words.spelled(b) if spelled or r.random() < 0.02 else str(b), x=r.choice(words.FRUITS),
        y=words.noun(r), z=words.noun(r), n=words.name(r), m=words.name(r),
    )  # fmt: skip
    if plus:
        steps = f"{add_steps(a, b)}\n{a + b}"
    elif a >= b:
        steps = f"{subtract_steps(a, b)}\n{a - b}"
    else:
        steps = f"{a} - {b} is negative\n{subtract_steps(b, a)}\n{a - b}"
    result = f"{a} {'+' if plus else '-'} {b} = {a + b if plus else a - b}"
    if not thinking and digits > 2:
        return asked(r, line), "", f"{steps}\n{result}"
    return asked(r, line), steps, result


def arithmetic(r: Random, size: int) -> Sample:
    o, messages = options(r), []
    thinking = o.get("enable_thinking", True)
    for _ in range(r.choice((1, 1, 2, 3))):
        messages += turn(o, calculation(r, thinking, r.choice((1, 2, 3, 3, 4, 4, 4, 5))))
    return Sample("arithmetic", messages, None, o)


# --- retrieval

_THINGS = (
    "access code|room number|badge number|locker|phone extension|seat|ticket number|favourite word|password|home town|order number|bank code|"
    "parking space|secret word|customer number|birth place|flight|desk|account|licence|serial number|hiding place|lucky number|door code|nickname|"
    "address|telephone number|size|price|weight|title|call sign|rank|team|profession|middle name|destination|platform|gate|table|birthday"
).split("|")  # fmt: skip
_SORTS = "code number name word key label id colour price date place owner address size team password sign mark tag answer level address group".split()


def thing(r: Random) -> str:
    """What somebody may have: hundreds of thousands."""
    if r.random() < 0.35:
        return r.choice(_THINGS)
    first = words.noun(r) if r.random() < 0.7 else r.choice(words.ADJECTIVES)
    return f"{first} {r.choice(_SORTS) if r.random() < 0.7 else words.noun(r)}"


_STATED = (
    "The {x} [of|for|belonging to|given to|that belongs to] {k} is {v}.", "{k}'s {x} is {v}.", "[Note|Important|Remember|For the record|Attention]: the {x} [for|of] {k} is {v}.", "{k} has the {x} {v}.",
    "For {k}, the {x} [was set to|is|was changed to|will be] {v}.", "[Remember|Do not forget|It is known|Everybody knows|Know] that {k} [uses|has|got|keeps] {v} as [|the |a ]{x}.", "{v} is the {x} of {k}.", "{v} is {k}'s {x}.",
    "As {x}, {k} [was given|has|received|chose|uses|got] {v}.", "The {person} wrote [down |]{v} as the {x} of {k}.", "{k}: {x} {v}.", "{k} - {x}: {v}", "{x} of {k}: {v}", "{x} ({k}) = {v}", "{k} | {x} | {v}",
    "{k} [chose|has|received|uses|was given|got|keeps|bears] {v} as [|the |a ]{x}.", "[They|The {person}|{n}] [gave|assigned|assigned to|told] {k} the {x} {v}.", "When [asked|they asked] about the {x}, {k} [said|answered|wrote] {v}.",
    "[Since|Until] {t}, {k} has had {v} as {x}.", "The {x} [that|which] {k} [has|uses|wanted|was given] is {v}.", "{n} says [that |]the {x} of {k} is {v}.", "[By the way|Also|Finally|Besides], {k}'s {x} [is|was|remains] {v}.",
    "Under {k} you [find|see] the {x} {v}.", "[If|When] you need {k}'s {x}, [use|take|it is|write|try] {v}.", "The list [shows|gives|has] {v} [as the {x} of|for the {x} of] {k}.", "{k} and the {x} {v} belong together.",
)  # fmt: skip
_ASKED = (
    "What [is|was] the {x} [of|for|belonging to] {k}?", "What [is|was] {k}'s {x}?", "[Which|What] {x} [does {k} have|has {k}|did {k} get|was given to {k}|belongs to {k}|did {k} choose|does {k} use|is {k}'s]?", "[Tell me|Give me|Name|State|Say|Repeat|Write] the {x} of {k}.",
    "{x} of {k}?", "{k}'s {x}?", "I [need|want|am looking for|forgot|would like to know] the {x} [for|of] {k}.", "[Do you know|Can you tell me|Could you find|Can you see|Have you seen] the {x} of {k}?", "[Find|Look for|Search for] {k}'s {x}[| in the text].",
    "Please look up the {x} [of|for] {k}.", "The text [names|gives|mentions|contains] the {x} of {k}. What is it?", "[Give|Tell] me the {x} that belongs to {k}.", "What does the text [say|tell us] about the {x} of {k}?", "{k} has [a|an|some] {x}. [Which|Which one|What is it]?",
    "[Under|By] which {x} is {k} [known|found|listed]?", "As for {k}: what is the {x}?", "[What|Which] is the {x} written down for {k}?", "Somebody asks for {k}'s {x}. What [do|should] I [say|answer]?", "What did {k} get as [the |]{x}?",
)  # fmt: skip
_INTRO = (
    "[Read|Study|Look at|Take] [the|this|the following] [text|passage|page|story|document] [and answer[| the questions]|carefully|please][.|:]", "Here [is|comes] [a|the|some] [text|document|passage|report].", "[Keep|Bear] [these notes|this] in mind[.|:]", "[Text|Document|Notes|Passage|Context|Input]:",
    "I will ask [you |][about this text|some questions about this].", "[Some|My|These are my|Old] notes[:|.]", "Please read this[.|:| text.]", "The following was [found|written|sent to me|copied][.|:]", "",
)  # fmt: skip
ABSENT = "The text does not say."


def owner(r: Random) -> str:
    kind = r.random()
    if kind < 0.55:
        return words.full_name(r)
    if kind < 0.7:
        return words.name(r)
    if kind < 0.8:
        return f"the {r.choice(words.ADJECTIVES)} {r.choice(words.PEOPLE)}"
    if kind < 0.9:
        return f"the {r.choice(words.ADJECTIVES)} {words.noun(r)}"
    if kind < 0.95:
        return f"{words.noun(r)} {words.number(r, r.randint(1, 3))}"
    return words.place(r)


def stated(r: Random, pattern: str, x: str, k: str, v: str) -> str:
    return say(
        r, pattern, x=x, k=k, v=v, person=r.choice(words.PEOPLE), n=words.name(r), t=r.choice(words.TIMES)
    )


def question_for(r: Random, x: str, k: str) -> str:
    return forms.asked_for(r, x, k) if r.random() < 0.65 else asked(r, say_one(r, _ASKED, x=x, k=k))


def retrieval(r: Random, size: int) -> Sample:
    """Facts of the same form in filler; `size` bounds the tokens of the text."""
    if size <= 1024:
        length = int(size * r.choice((0.05, 0.1, 0.2, 0.5, 0.8, 0.9)) * 0.7)
    else:
        length = int(size * r.uniform(0.3, 0.8))
    text = words.filler(r, max(1, length // 24))
    x, make = thing(r), r.choice((words.value, words.code, words.code))
    pairs: dict[tuple[str, str], str] = {}
    for _ in range(r.randint(1, 8) if size <= 1024 else r.randint(3, 14)):
        pairs[x if r.random() < 0.85 else thing(r), owner(r)] = make(r)
    style, form = r.choice(_STATED) if r.random() < 0.6 else None, forms.fact_form(r)
    free, alike = r.random() < 0.65, r.random() < 0.75
    for (of, k), v in pairs.items():
        if free:
            line = forms.stated(r, form if alike else forms.fact_form(r), of, k, v)
        else:
            line = stated(r, style or r.choice(_STATED), of, k, v)
        text.insert(r.randint(0, len(text)), line)
    o, order = options(r), list(pairs)
    r.shuffle(order)
    questions = [(q, pairs[q]) for q in order[: r.randint(1, 6) if size <= 1024 else 8]]
    if r.random() < 0.25:
        questions.insert(r.randint(0, len(questions)), ((x, owner(r)), ""))
    body, intro = r.choice((" ", " ", " ", "\n")).join(text), say_one(r, _INTRO)
    messages: list[Message] = []
    for i, ((of, k), v) in enumerate(questions):
        line = question_for(r, of, k)
        if i == 0:
            gap = r.choice(("\n\n", "\n\n", "\n", "\n---\n", "\n\nQuestion: "))
            line = f"{intro}\n\n{body}{gap}{line}" if intro else f"{body}{gap}{line}"
        reply = f"The {of} of {k} is {v}." if v else ABSENT
        messages += turn(o, (line, f"I look for the {of} of {k}: {v or 'not there'}.", reply))
    return Sample("retrieval", messages, None, o)


# --- recall over turns

_TOLD: tuple[tuple[str, Callable[[Random], str], tuple[str, ...], tuple[str, ...]], ...] = (
    ("name", words.name, ("My name is {v}.", "I am {v}.", "Hello, I'm {v}.", "[You can call|Call] me {v}.", "[I am called|They call me|People call me] {v}.", "This is {v} [speaking|writing].", "{v} is my name."),
     ("What is my name?", "Who am I?", "Do you [remember|know] my name?", "What am I called?", "[Say|Tell me] my name.", "How [should|do] you [call|address] me?")),
    ("home town", words.place, ("I live in {v}.", "My home is in {v}.", "I moved to {v}.", "I am from {v}.", "My house [is|stands] in {v}.", "{v} is where I live."),
     ("Where do I live?", "Which [town|city] do I live in?", "Where is my home?", "Where am I from?", "In which place do I live?")),
    ("favourite colour", lambda r: r.choice(words.COLOURS), ("I like {v} best.", "My favourite colour is {v}.", "{v} is the colour I like most.", "I love the colour {v}."),
     ("What is my favourite colour?", "Which colour do I [like|love|prefer]?", "What colour do I like best?")),
    ("job", lambda r: r.choice(words.PEOPLE), ("I work as a {v}.", "I am a {v} by trade.", "My job: {v}.", "I earn my money as a {v}.", "For a living I am a {v}."),
     ("What is my job?", "What do I do for a living?", "As what do I work?", "What is my profession?")),
    ("best friend", words.full_name, ("My best friend is {v}.", "{v} is my best friend.", "My best friend is called {v}."),
     ("Who is my best friend?", "What is the name of my best friend?", "What is my best friend called?")),
    ("age", lambda r: str(r.randint(5, 99)), ("I am {v} years old.", "My age is {v}.", "I turned {v} [today|this year|last week]."),
     ("How old am I?", "What is my age?", "What age am I?")),
)  # fmt: skip
_MINE = (
    "My {x} is {v}.", "My {x}: {v}[|.]", "[Please |]remember[|:| that] my {x} is {v}.", "The {x} I [have|use|chose|got] is {v}.", "[Keep|Note|Save|Store] my {x}[:|, it is|:] {v}.", "I have {v} as [my |]{x}.", "{v} is my {x}.", "I [chose|picked|got|use|was given] {v} as [my |the |]{x}.",
    "[For your information|By the way|Listen|Just so you know][,|:] my {x} is {v}.", "As [my |]{x} I [use|have|chose] {v}.", "My {x} is called {v}.", "My {x} [has the name|goes by the name|is named] {v}.", "We [have|got] a {x} called {v}.", "I [have|own|bought] a {x} and [call|named] it {v}.",
)  # fmt: skip
_MINE_ASKED = (
    "What [is|was] my {x}[| again]?", "[Which|What] {x} [do I have|have I|did I choose|did I tell you|do I use]?", "[Tell me|Name|Say|Repeat|What was] my {x}.", "[Do|Can] you [remember|recall|know] my {x}?", "I forgot my {x}. [What is it|What was it|Help]?", "What is my {x} called?", "My {x}?",
    "What is the name of my {x}?", "[What|Which] {x} did I [mention|give|name]?", "Remind me of my {x}.", "What did I say [about|was] my {x}?", "Earlier I [told you|named|mentioned] my {x}. What [is|was] it?",
)  # fmt: skip
NOTED = "I will remember that."


def told(r: Random) -> tuple[str, str, str, str]:
    """(statement, what, value, question) about the user or somebody else."""
    kind = r.random()
    if kind < 0.4:
        v = words.value(r)
        statement, what, question = forms.shared(r, v)
        return statement, what, v, question
    if kind < 0.6:
        what, make, statements, questions = r.choice(_TOLD)
        v = make(r)
        return say_one(r, statements, v=v), f"your {what}", v, say_one(r, questions)
    if kind < 0.85:
        x = r.choice(words.ANIMALS) if r.random() < 0.2 else thing(r) if r.random() < 0.7 else words.noun(r)
        v = words.value(r)
        return say_one(r, _MINE, x=x, v=v), f"your {x}", v, say_one(r, _MINE_ASKED, x=x)
    x, k, v = thing(r), owner(r), words.value(r)
    line = (
        forms.stated(r, forms.fact_form(r), x, k, v)
        if r.random() < 0.6
        else stated(r, r.choice(_STATED), x, k, v)
    )
    return line, f"the {x} of {k}", v, question_for(r, x, k)


def recall(r: Random, size: int) -> Sample:
    """Things that the user says and asks for later, with talk between."""
    known: dict[str, tuple[str, str]] = {}
    o, messages = options(r), []
    thinking = o.get("enable_thinking", True)
    room = max(0, (size - 500) // 100)
    for _ in range(r.randint(1, 5)):
        items = [told(r) for _ in range(r.choice((1, 1, 1, 2)))]
        items = [
            i for n, i in enumerate(items) if i[1] not in known and i[1] not in (x[1] for x in items[:n])
        ]
        if not items:
            continue
        line = " ".join(i[0] for i in items)
        messages += turn(o, (line, "; ".join(f"{i[1]} is {i[2]}" for i in items) + ".", NOTED))
        known |= {i[1]: (i[2], i[3]) for i in items}
        for _ in range(r.randint(0, min(2, room))):
            messages += turn(o, small_talk(r, thinking))
            room -= 1
    questions = [(q, what, v) for what, (v, q) in known.items()]
    r.shuffle(questions)
    if r.random() < 0.15:
        _, what, _, question = told(r)
        if what not in known:
            questions.insert(r.randint(0, len(questions)), (question, what, ""))
    for question, what, v in questions:
        text = f"{what[0].upper() + what[1:]} is {v}." if v else "You did not tell me."
        messages += turn(o, (asked(r, question), f"{what}: {v or 'not told'}.", text))
    return Sample("recall", messages, None, o)


def small_talk(r: Random, thinking: bool) -> Turn:
    kind = r.random()
    if kind < 0.3:
        return greeting(r)
    if kind < 0.6:
        return about(r)
    if kind < 0.7:
        return unknown(r)
    return calculation(r, thinking, r.choice((1, 2, 2, 3) if thinking else (1, 2)))


# --- questions about NextFit, talk

_FILLING = "actually really exactly currently usually please now here also just then again today ever normally maybe there".split()


def about(r: Random) -> Turn:
    topic, called, questions, text = r.choice(FACTS)
    kind = r.random()
    if kind < 0.2:
        line = say_one(r, FRAMES, a=say(r, called))
    elif kind < 0.4:
        name = say(r, called)
        line = forms.about(r, name[:1].lower() + name[1:] if name[1:2].islower() else name)
    else:
        line = say_one(r, questions)
    kind = r.random()
    if kind < 0.1:
        line = f"{words.sentence(r)} {line}"
    elif kind < 0.25:  # a word more or less
        parts = line.split(" ")
        i = r.randint(0, len(parts) - 1)
        parts[i : i + (len(parts) > 3 and r.random() < 0.3)] = (
            [r.choice(_FILLING)] if r.random() < 0.8 else []
        )
        line = " ".join(parts) or line
    return asked(r, line), f"This is about {topic}.", text


def greeting(r: Random) -> Turn:
    what, questions, text = r.choice(CHAT)
    return (
        asked(r, say_one(r, questions)) if r.random() < 0.3 else say_one(r, questions),
        f"This is {what}.",
        text,
    )


def unknown(r: Random) -> Turn:
    line = say_one(
        r, UNKNOWN, place=words.place(r), adj=r.choice(words.ADJECTIVES), noun=words.noun(r), name=words.name(r),
        word=words.word(r), year=words.number(r, 4), person=r.choice(words.PEOPLE),
    )  # fmt: skip
    if r.random() < 0.2:
        line = say_one(r, _ASKED, x=thing(r), k=owner(r))
    return asked(r, line), "I was not taught this.", "I do not know that."


_COPY = (
    "[Repeat|Say|Write|Copy|Echo|Print]: {v}", "[Repeat|Say|Write|Copy] [after me|this|the following|exactly this][:| -] {v}", "[Repeat|Copy|Say] the words {v}", "Please [repeat|say|write] {v}", "[Say|Write] {v} [and nothing else|once]",
)  # fmt: skip


def copying(r: Random) -> Turn:
    v = " ".join(
        r.choice((words.word, words.code, words.name, words.word, words.hour))(r)
        for _ in range(r.randint(1, 12))
    )
    return say_one(r, _COPY, v=v), "I repeat it.", v


def facts(r: Random, size: int) -> Sample:
    o, messages = options(r), []
    for _ in range(r.choice((1, 1, 2, 3, 4))):
        messages += turn(o, about(r))
    return Sample("facts", messages, None, o)


def chat(r: Random, size: int) -> Sample:
    """Greetings, what cannot be known, copies, and a little of everything."""
    o, messages = options(r), []
    thinking = o.get("enable_thinking", True)
    for _ in range(r.choice((1, 1, 2, 3, 4))):
        kind = r.random()
        t = copying(r) if kind < 0.4 else unknown(r) if kind < 0.65 else small_talk(r, thinking)
        messages += turn(o, t)
    return Sample("chat", messages, None, o)


def call(r: Random, size: int) -> Sample:
    o = options(r)
    messages, schemas = tools(r, lambda text, thought: answer(o, text, thought))
    return Sample("tools", messages, schemas, o)


MIX: tuple[tuple[float, Callable[[Random, int], Sample]], ...] = (
    (0.14, arithmetic), (0.22, retrieval), (0.19, recall), (0.24, call), (0.09, facts), (0.12, chat),
)  # fmt: skip


_SYSTEM = (
    "You are [a|an] [helpful|friendly|polite|careful|honest|patient|expert] [assistant|helper|clerk|agent|bot][.| called {n}.| for {n}.| at {n}.]", "[Answer|Reply] [briefly|in one sentence|politely|in English|shortly].", "The [user|customer] is [a|an] {p}.",
    "You are [Nano|{n}][.|, an assistant.|, the assistant of {n}.]", "Be [brief|kind|polite|exact].", "[Today is|The date is|It is] {d}.", "Help the [user|customer|{p}].",
)  # fmt: skip


def draw(r: Random, size: int, long: float) -> Sample:
    """A conversation; with probability `long` one whose text fills up to `size` tokens, otherwise a short one."""
    if r.random() < long:
        sample = retrieval(r, size) if r.random() < 0.9 else recall(r, size)
    else:
        (generator,) = r.choices([g for _, g in MIX], [w for w, _ in MIX])
        sample = generator(r, min(size, 1024))
    if r.random() < 0.15:
        line = say_one(r, _SYSTEM, n=words.name(r), p=r.choice(words.PEOPLE), d=words.date(r))
        sample.messages.insert(0, {"role": "system", "content": line})
    return sample
