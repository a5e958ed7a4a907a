"""Sentences whose form is drawn, too: what is taught is to find what belongs together, not a list of patterns."""

from __future__ import annotations

from random import Random

from train import words
from train.say import say

_IS = "is was reads became remains equals shows stays means says".split()
_LISTED = "turned out to be|is listed as|is noted as|is known to be|has become|had to be|will soon be|is still|is now|was always|came out as|is given as|ended up as|appears as|must be|could only be".split(
    "|"
)
_GIVE = "given assigned handed granted allotted lent sent told promised offered awarded shown left brought passed sold".split()
_HOLD = "has got keeps uses owns holds carries bears wears chose took received obtained kept wanted found remembers prefers gets".split()
_OF = "of|for|of|for|belonging to|given to|kept by|used by|that belongs to|which was given to|chosen by|known to|held for".split(
    "|"
)
_SAID = "says said wrote thinks knows claims reports noted swears heard insists remarked recalls added repeated".split()
_IT = ("seems", "is clear", "is said", "was decided", "turned out", "is true")
_BEFORE = (
    "[As for|Concerning|About|Regarding] the {n}:", "{t},", "[In|On|From|According to|Judging by|By] the {a} {n},", "[According to|As told by|In the words of|Ask] {m}:", "The {p} {d} that", "{m} {d} that", "It {d2} that", "[Today|Meanwhile|Also|Yet|So|Indeed|However|Still|Thus],",
    "[Number|Item|Entry|Line|Point] {i}:", "[Note|Fact|Info|Log|Memo]:", "[After|Before|During|Since|Until] the {n},", "[Surely|Perhaps|Officially|Clearly|Luckily|Oddly|Sadly|Recently],", "When the {n} {v},",
)  # fmt: skip
_AFTER = ("{t}", "for the {n}", "in the {n}", "[after|before|during|since] the {n}", "[as|though] the {p} {v} it", "and nobody {v} it", "[indeed|again|too|officially|by the way|for good|these days]", "in {y}", ", says {m}", "because of the {a} {n}")  # fmt: skip
_FETCH = "tell give show find name state say repeat write quote fetch read spell get look bring report provide list extract recall check mention reveal present supply return print identify point search hand send pick note".split()
_WANT = (
    "I [need|want|seek|miss|require|lost|forgot|would like|am after|am looking for|have to know|cannot find]"
)
_LEAD = (
    "[According to|Judging by|From|Based on|Given|In|Looking at|After] the {n}[, |: | - ]", "[Now|So|Then|Please|Well|And|Okay|Right][,|] ", "[Somebody|The {p}|{m}] [asks|wants to know|wonders]: ", "[Quick|Last|Another|One] [question|thing|one]: ", "[Can|Could|Would|Will] you [say|tell me|check]: ", "{t}, ",
)  # fmt: skip


def _filled(r: Random, pattern: str, **values: str) -> str:
    """Words around the ones that matter."""
    drawn = dict(
        n=words.noun(r), a=r.choice(words.ADJECTIVES), p=r.choice(words.PEOPLE), m=words.name(r), t=r.choice(words.TIMES),
        v=r.choice(words.VERBS), d=r.choice(_SAID), d2=r.choice(_IT), i=str(r.randint(1, 99)), y=str(r.randint(1500, 2040)),
    )  # fmt: skip
    return say(r, pattern, **{**drawn, **values})


def _verb(r: Random) -> str:
    """Any verb in the past tense, one that there is or not."""
    return r.choice(words.VERBS) if r.random() < 0.7 else words.word(r) + "ed"


def _possessed(r: Random, x: str, k: str) -> str:
    kind = r.random()
    if kind < 0.3:
        return f"{k}'s {x}"
    if kind < 0.75:
        return f"the {x} {r.choice(_OF)} {k}"
    participle = r.choice(_GIVE) if r.random() < 0.5 else _verb(r)
    return f"the {x} {participle} {r.choice(('by', 'for', 'to', 'with'))} {k}"


def _around(r: Random, line: str, before: float = 0.35, after: float = 0.3) -> str:
    if r.random() < before:
        lead = _filled(r, r.choice(_BEFORE))
        line = f"{lead} {line}"
    if r.random() < after:
        tail = _filled(r, r.choice(_AFTER))
        line = f"{line}{'' if tail.startswith(',') else ' '}{tail[:1].lower()}{tail[1:]}"
    return f"{line[:1].upper()}{line[1:]}."


def fact_form(r: Random) -> tuple[int, int]:
    """What makes a form: one number for its kind, one that seeds the rest of it."""
    return r.choice((0, 1, 2, 3, 4, 4, 4, 5, 6)), r.getrandbits(32)


def stated(r: Random, form: tuple[int, int], x: str, k: str, v: str) -> str:
    """That the `x` of `k` is `v`; the same form gives the same words around them."""
    kind, seed = form
    r = Random(seed)
    if kind <= 1:
        line = f"{_possessed(r, x, k)} {r.choice(_IS) if r.random() < 0.5 else r.choice(_LISTED)} {v}"
    elif kind == 2:
        line = f"{k} {r.choice(_HOLD) if r.random() < 0.6 else _verb(r)} {v} {r.choice(('as', 'for', 'under', 'like', 'to be'))} {r.choice(('the ', 'a ', '', 'their ', 'the only '))}{x}"
    elif kind == 3:
        line = f"{k} was {r.choice(_GIVE) if r.random() < 0.5 else _verb(r)} {v} {r.choice(('as', 'for', 'instead of another', 'by way of'))} {x}"
    elif kind == 4:
        line = f"{v} {r.choice(_IS + _LISTED)} {_possessed(r, x, k)}"
    elif kind == 5:
        who = r.choice(("whoever", "anyone who", "everybody who", "a person who", "if one", "those who"))
        line = f"{who} {_verb(r)} {_possessed(r, x, k)} {r.choice(('must', 'should', 'may', 'can', 'had to', 'will'))} {r.choice(_FETCH)} {v}"
    else:
        verb = r.choice(_HOLD) if r.random() < 0.6 else _verb(r)
        line = f"the {x} {r.choice(('that', 'which'))} {k} {verb} {r.choice(_IS + _LISTED)} {v}"
    return _around(r, line)


def asked_for(r: Random, x: str, k: str) -> str:
    """A question for the `x` of `k`."""
    kind = r.randrange(6)
    what = r.choice(("what", "which", "what"))
    if kind <= 1:
        line = f"{what} {r.choice(_IS[:3] + _LISTED) if r.random() < 0.5 else 'is'} {_possessed(r, x, k)}?"
    elif kind == 2:
        aux, verb = r.choice(
            (
                ("was", r.choice(_GIVE)),
                ("did", "get"),
                ("does", "use"),
                ("is", "with"),
                ("was", _verb(r)),
                ("has", _verb(r)),
            )
        )
        line = f"{what} {x} {aux} {k} {verb}?"
    elif kind == 3:
        line = f"{r.choice(_FETCH)}{r.choice(('', ' me', ' us', ' out', ' up'))} {_possessed(r, x, k)}{r.choice(('.', '?', ''))}"
    elif kind == 4:
        line = f"{_filled(r, _WANT)} {_possessed(r, x, k)}{r.choice(('.', '', '. Help?', ', what is it?'))}"
    else:
        doc = r.choice(("the text", "it", "the passage", "this", "the page", f"the {words.noun(r)}"))
        line = f"{what} {x} {r.choice(('does', 'did'))} {doc} {r.choice(_FETCH)} {r.choice(('for', 'of', 'about', 'with', 'under'))} {k}?"
    return _lead(r, line)


def _lead(r: Random, line: str) -> str:
    if r.random() < 0.35:
        line = _filled(r, r.choice(_LEAD)) + line
    return line[:1].upper() + line[1:]


def about(r: Random, called: str) -> str:
    """A question about what is `called` so, in any words."""
    spare = [
        r.choice(
            (
                r.choice(_FETCH),
                r.choice(words.VERBS),
                r.choice(_IS),
                r.choice(_SAID),
                words.noun(r),
                r.choice(words.ADJECTIVES),
            )
        )
        for _ in range(r.randint(0, 3))
    ]
    frame = r.choice(
        (
            "what {s} {c}?",
            "how {s} {c}?",
            "{f} me {c} {s}.",
            "{c}: {s}?",
            "which {s} {c}?",
            "{f} {c}.",
            "why {s} {c}?",
            "is {c} {s}?",
            "{w} {c} {s}.",
            "with which {s} is {c}?",
            "suppose {s} {c}: what then?",
            "what is {s} {c}?",
        )
    )
    return _lead(
        r,
        " ".join(frame.format(s=" ".join(spare), c=called, f=r.choice(_FETCH), w=_filled(r, _WANT)).split()),
    )


# --- what the user says and asks for later: both share words, whatever they are

_ME = (
    "my {a} {b}",
    "the {a} {b} of mine",
    "my {a} at the {b}",
    "the {a} that I {b}",
    "my {a} and {b}",
    "the {a} near my {b}",
    "the {a} in my {b}",
)
_TELLS = (
    "{w} {is_} {v}",
    "{v} {is_} {w}",
    "I {verb} {v} {as_} {w}",
    "{w} {verb} {v}",
    "they {verb} {w} {v}",
    "you {can} {verb} {w} {as_} {v}",
    "{v} {verb} {w}",
    "everybody {verb} {w} {as_} {v}",
)
_QUESTIONS = (
    "{wh} {is_} {w}?",
    "{wh} did I {verb} {as_} {w}?",
    "{wh} {verb} {w}?",
    "{prep} {wh} {is_} {w} {verb}?",
    "{get} me {w}.",
    "{wh} {can} {w} {verb}?",
    "do you {get} {w}?",
    "{wh} {noun} {is_} {w}?",
)


def _echoed(r: Random, v: str) -> tuple[str, str, str]:
    """A statement of any words, and the same words asked back."""
    pools = (
        words.VERBS,
        words.NOUNS,
        words.ADJECTIVES,
        words.PEOPLE,
        _SAID,
        "my the a in at to of with for is was has".split(),
    )
    said = [r.choice(r.choice(pools)) if r.random() < 0.85 else words.word(r) for _ in range(r.randint(2, 6))]
    at = r.randint(0, len(said))
    first = r.choice(("I", "I am", "My", "We", "You will find me", "They", "The", "People", "At home I", ""))
    line = " ".join(filter(None, [first, *said[:at], v, *said[at:]]))
    kept = [w for w in said if r.random() < 0.85] or said
    if r.random() < 0.15:
        r.shuffle(kept)
    wh = r.choice(
        (
            "what",
            "which",
            "who",
            "where",
            "to what",
            "by what",
            "in which",
            "to which",
            "what name",
            "which one",
            "from where",
            "with whom",
        )
    )
    aux = r.choice(
        (
            "am I",
            "did I",
            "was I",
            "do they",
            "is my",
            "does my",
            "is the",
            "would you",
            "have I",
            "is",
            "was",
            "",
        )
    )
    return _around(r, line, 0.15, 0.15), "it", _lead(r, f"{' '.join(filter(None, [wh, aux, *kept]))}?")


def shared(r: Random, v: str) -> tuple[str, str, str]:
    """(statement with `v`, what it is about, question)."""
    if r.random() < 0.5:
        return _echoed(r, v)
    pool = (
        lambda: words.noun(r),
        lambda: _verb(r),
        lambda: r.choice(words.ADJECTIVES),
        lambda: words.word(r),
    )
    a, b = words.noun(r), r.choice(pool)()
    w = r.choice(_ME).format(a=a, b=b)

    def fill(pattern: str) -> str:
        return pattern.format(
            w=w, v=v, is_=r.choice(_IS) if r.random() < 0.5 else r.choice(_LISTED), verb=_verb(r), as_=r.choice(("as", "for", "with", "by", "to", "under")),
            can=r.choice(("can", "may", "must", "should", "will", "shall")), wh=r.choice(("what", "which", "who", "where", "what", "how")),
            prep=r.choice(("by", "in", "to", "under", "with", "for", "at")), get=r.choice(_FETCH), noun=words.noun(r),
        )  # fmt: skip

    return (
        _around(r, fill(r.choice(_TELLS)), 0.25, 0.25),
        w.replace("my ", "your ").replace("mine", "yours").replace(" I ", " you "),
        _lead(r, fill(r.choice(_QUESTIONS))),
    )


# --- amounts that grow and shrink

_GROW = "gets buys finds receives earns wins gathers makes collects adds saves gains imports digs catches builds inherits brings fetches".split()
_SHRINK = "loses sells eats drops breaks gives throws lends burns spends wastes donates forgets spills returns uses drinks hides exports removes buries misses scraps".split()
_COME = "come|arrive|appear|are added|join|are delivered|are born|follow|enter|are put in|grow|are poured in|turn up|are bought|step in|fall in".split(
    "|"
)
_GO = "go|leave|vanish|are taken|are removed|die|disappear|are sold|run away|are gone|melt|drop out|are thrown away|are used up|fall out|are lost".split(
    "|"
)
_THEN = "then later afterwards next soon and also again but finally".split()
_HOW = ("how many {x} [are there|are there now|is that|does that make|remain|result|are on hand]?", "what is the [number|count|result|figure|amount|stock|balance]?", "[give|tell|state|name|work out|find] the [new|final|last] [number|count|figure].", "how [many|much] now?", "[and|so|which makes]?", "where does that [end|stand|leave it]?")  # fmt: skip


def story(r: Random, a: str, b: str, plus: bool) -> str:
    """`a` and a `b` that is added or taken away."""
    x, n = r.choice(words.FRUITS) if r.random() < 0.5 else words.noun(r) + "s", words.name(r)
    place = r.choice(
        (
            f"in the {words.noun(r)}",
            f"at the {words.noun(r)}",
            "here",
            f"near {words.place(r)}",
            f"on the {words.noun(r)}",
            "there",
            f"with {n}",
        )
    )
    kind, then = r.randrange(4), r.choice(_THEN)
    if kind == 0:
        start = r.choice(
            (
                f"{n} {r.choice(_HOLD)} {a} {x}",
                f"There are {a} {x} {place}",
                f"The {words.noun(r)} {_verb(r)} {a} {x}",
                f"{a} {x} {r.choice(('are', 'stand', 'wait', 'lie', 'sit'))} {place}",
                f"We count {a} {x}",
                f"The {words.noun(r)} holds {a} {x}",
            )
        )
    elif kind == 1:
        start = r.choice(
            (
                f"The {words.noun(r)} is {a} {x} {r.choice(('long', 'high', 'deep', 'old', 'wide'))}",
                f"It {r.choice(_IS)} {a}",
                f"The {words.noun(r)} stands at {a}",
                f"A {words.noun(r)} costs {a}",
                f"{r.choice(('Take', 'Start with', 'You have', 'Think of', 'Say', 'Begin with', 'The number is'))} {a}",
            )
        )
    else:
        start = f"{r.choice(('At first', 'Yesterday', 'Today', 'Once', 'In the morning', words.noun(r).title()))} {a} {x} {place}"
    more = r.choice(("", " more", " others", " further", f" {x}", " of them"))
    if r.random() < 0.5:
        change = f"{then} {b}{more} {r.choice(_COME if plus else _GO)}"
    else:
        change = f"{then} {r.choice((n, words.name(r), 'somebody', 'the ' + r.choice(words.PEOPLE)))} {r.choice(_GROW if plus else _SHRINK)} {b}{more}"
    joint = r.choice((". ", ", ", "; "))
    if joint == ". ":
        change = change[:1].upper() + change[1:]
    how = _filled(r, r.choice(_HOW), x=x)
    return f"{start}{joint}{change}. {how[:1].upper()}{how[1:]}"
