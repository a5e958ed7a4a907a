"""Words, names and sentences that the tasks are made of. Evaluation has its own and never imports these."""

from __future__ import annotations

from random import Random

_FIRST = (
    "ba be bo ca ce da de di do fa fe ga go ha he hi jo ka ke ki la le li lo ma me mi mo na ne ni no".split()
)
_MIDDLE = "r l n m s t v d ri la no mi ve ra li ne so ta".split()
_LAST = "n s a o ra na la m th ck ll rt nd va ko ss na ri to x".split()
ADJECTIVES = (
    "old new red blue green grey quiet loud small large narrow wide early late cold warm heavy light broken "
    "clean dusty empty full famous foreign gentle hidden honest lazy lonely modern noisy patient pale plain "
    "polite poor proud quick rare rich rough round rusty sharp shy silent simple slow smooth soft sour square "
    "steep strange strong sweet tall thick thin tired tiny tough ugly vast weak wet wild wise wooden yellow "
    "ancient bitter bright busy calm careful cheap clever common crooked curious dark deep distant dry dull "
    "eager elegant fair faint fierce firm flat fresh friendly golden grand greedy happy hollow hungry icy "
    "jealous kind local loose lucky main mild mighty muddy neat nervous northern odd open orange public "
    "royal sacred safe second secret serious shallow shiny short silver single sleepy solid southern spare "
    "stiff sudden third tidy upper usual violet weekly white annual daily final formal internal junior senior "
    "medical national personal private technical temporary urban weekly"
).split()
NOUNS = (
    "bridge garden harbour kitchen letter lamp market mirror mountain orchard painting piano river school ship "
    "station street table tower train valley village window winter workshop bakery boat book box castle clock "
    "door engine farm field ferry forest fountain gate hill hotel island key ladder library map mill museum "
    "apple arrow axe badge ball bank barn basket bath beach bed bell belt bench bird blanket blade board bottle "
    "bowl branch bread brick broom brush bucket button cabin cable cage camera candle car card carpet cart cave "
    "chain chair chalk chapel cheese chest church circle city cliff cloth cloud coat coffee coin college "
    "column comb copper corner cotton couch counter court cradle cup curtain dam desk diary dish dock drawer "
    "dress drum envelope factory fence fiddle file fire flag floor flower flute fork fruit furnace glass glove "
    "grain grass guitar hall hammer handle hat hedge helmet horn house hut ink iron jacket jar jewel jug kettle "
    "kite knife knot lake lantern lawn leaf lens lid line lock log machine mask meadow medal meal metal mine "
    "needle nest net note novel oar office oven package page pan paper parcel park path pearl pen pencil phone "
    "picture pillow pin pipe plan plate pocket pond pool pot print pump purse quilt radio rail report ribbon "
    "ring road robe rock roof room rope rug sack saddle sail sand scale scarf screen seed shed shelf shell shirt "
    "shoe shop sign silk sink sketch skirt sky sofa song spade spoon spring square stable stage stair stamp star "
    "statue stone stool store storm stove string suit sword tank tent theatre thread ticket tile tool torch town "
    "toy tray tree trumpet tunnel umbrella vase vest violin wagon wall watch well wheel whistle wire wood wool "
    "account order invoice project task event message meeting article recipe route flight song playlist photo user "
    "group channel server database backup folder document comment review booking payment refund contract "
    "budget forecast schedule lesson course exam grade patient prescription device sensor light heater camera "
    "record profile address contact product stock price shipment warehouse report survey poll vote tax bill job"
).split()
PEOPLE = (
    "baker captain carpenter clerk cook doctor driver farmer gardener judge mechanic miller nurse painter pilot "
    "poet sailor singer student tailor teacher watchmaker writer mayor fisher guard hunter librarian actor "
    "architect artist barber builder butcher butler cashier chemist coach cleaner dancer dentist designer "
    "detective editor engineer glazier goldsmith grocer guide inspector jeweller journalist lawyer locksmith "
    "manager merchant messenger miner minister musician optician organist pharmacist photographer plumber porter "
    "potter printer producer professor programmer publisher ranger reporter roofer saddler scientist sculptor "
    "secretary shepherd smith soldier surgeon surveyor tanner thatcher translator waiter weaver welder"
).split()
VERBS = (
    "watched repaired painted sold found lost counted described forgot opened closed visited moved cleaned drew "
    "measured photographed remembered borrowed returned carried hid noticed avoided admired crossed left reached "
    "bought built burned buried caught checked chose collected copied covered cut decorated delivered designed "
    "destroyed discovered dropped emptied examined explored fetched filled followed guarded hated hired ignored "
    "inherited inspected invented kicked kept lent lifted liked locked loved made marked missed needed ordered "
    "owned packed passed planned polished praised pulled pushed read received recognised refused removed rented "
    "replaced reported rescued ruined saved searched shared showed stole studied swept tested touched traded used"
).split()
TIMES = (
    "in the morning|before noon|after lunch|in the evening|at night|last week|a year ago|on Monday|on Friday|"
    "during the storm|in spring|every summer|twice a month|without a word|for the first time|once more|by accident|"
    "on Tuesday|at dawn|before the war|in the rain|in a hurry|long ago|with great care|at last|now and then|"
    "in secret|for no reason|as usual|all day|three times|in autumn|on a Sunday|by hand|for years|this time"
).split("|")
PLACES = (
    "Oslo Lima Cairo Turin Quito Perth Leeds Kyoto Dakar Malmo Porto Bern Lagos Austin Delhi Seoul Hanoi Riga "
    "Tunis Accra Havana Zagreb Dublin Geneva Naples Seville Athens Boston Denver Nairobi Prague Vienna Paris "
    "London Berlin Madrid Rome Milan Tokyo Osaka Beijing Manila Jakarta Mumbai Karachi Tehran Baghdad Ankara "
    "Warsaw Cracow Moscow Kiev Minsk Sofia Belgrade Budapest Bucharest Brussels Antwerp Ghent Bruges Cologne "
    "Hamburg Munich Zurich Basel Lyon Nice Bordeaux Toulouse Valencia Granada Chicago Seattle Phoenix Dallas "
    "Houston Miami Atlanta Detroit Toronto Montreal Calgary Ottawa Bogota Santiago Cordoba Salvador Sydney "
    "Melbourne Auckland Durban Harare Kampala Bamako Rabat Algiers Tripoli Beirut Amman Doha Muscat"
).split()
GIVEN = (
    "Anna Ben Clara David Emma Frank Greta Henry Ida John Karl Lena Mark Nora Oscar Paula Robert Sarah Thomas "
    "Ursula Victor Wanda Xavier Yusuf Zoe Alan Bella Carlos Diana Edward Fiona George Hanna Ivan Julia Kevin Laura "
    "Martin Nina Olaf Peter Quentin Rosa Simon Tina Ulrich Vera Walter Amir Beatrice Colin Dora Elias Flora Gustav "
    "Helga Isaac Jane Klaus Linda Miguel Natalie Otto Petra Ralf Sofia Tariq Una Vincent Wendy Mary James Patricia "
    "Michael Jennifer William Elizabeth Richard Susan Joseph Jessica Charles Karen Daniel Nancy Matthew Lisa Anthony "
    "Betty Steven Helen Paul Sandra Andrew Ashley Joshua Donna Kenneth Carol Brian Ruth Ronald Sharon Timothy "
    "Raj Mei Chen Akira Yuki Hiroshi Priya Anil Fatima Omar Leila Hassan Ngozi Kwame Amara Ingrid Lars Sven"
).split()
FAMILY = (
    "Smith Jones Brown Taylor Wilson Davies Evans Walker White Roberts Green Hall Wood Clarke Moore Baker Hill "
    "Cooper Ward Turner Carter Phillips Mitchell Parker Morris Cook Rogers Bailey Bell Murphy Kelly Gray Fisher "
    "Hunt Stone Marsh Fox Lane Page Reed Cole Ford Grant Hayes Knight Lloyd Mason Nash Palmer Quinn Rhodes Shaw "
    "Tate Webb York Meyer Weber Schulz Becker Hoffmann Koch Richter Klein Wolf Neumann Vogel Keller Rossi Russo "
    "Ferrari Bianchi Romano Garcia Lopez Sanchez Perez Torres Flores Rivera Silva Costa Santos Dubois Laurent "
    "Moreau Girard Tanaka Sato Suzuki Kim Park Lee Wang Zhang Liu Singh Patel Shah Khan Ali Okoye Mensah Berg Lund"
).split()
FRUITS = "apples pears plums cherries lemons grapes figs melons peaches olives nuts berries coins books stamps eggs cards boxes bottles tickets chairs pencils stones stickers cups plates buttons candles bricks sheep letters photos shells".split()
ANIMALS = "dog cat horse parrot rabbit goat donkey turtle hamster canary sheep pony bird fish snake cow mouse ferret".split()
COLOURS = (
    "red blue green yellow white black orange purple brown silver pink grey gold turquoise violet".split()
)
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow tonight".split()

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CONSONANTS = ("b c d f g h j k l m n p qu r s t v w x y z br bl cr cl dr fr fl gr gl pr pl st sh ch th tr sp sk sl sm sn sw wh "
               "b c d f g h k l m n p r s t v w").split()  # fmt: skip
_VOWELS = "a e i o u a e i o u y ai ea ee oo ou ow ie".split()
_CODAS = ("n r s l t m d ng sh ch ff b g z ck rt nd st th ll ss x ld nt rk mp p k e er on in el ton ford ley ham ing man "
          "son field wood worth well dale ard ert ette ina ia ius").split()  # fmt: skip


pieces: list[str] = []  # the tokenizer's, so that each of them is copied often; set by who has a tokenizer


def letters(r: Random, n: int) -> str:
    return "".join(r.choice(_LETTERS) for _ in range(n))


def word(r: Random) -> str:
    """A lower-case word: one that there is, an invented one, or any letters."""
    kind = r.random()
    if pieces and kind > 0.7:
        return "".join(r.choice(pieces) for _ in range(r.choice((1, 2, 2, 3))))
    if kind < 0.3:
        return r.choice(NOUNS if r.random() < 0.6 else r.choice((ADJECTIVES, VERBS, PEOPLE)))
    if kind < 0.55:
        return "".join(r.choice(_FIRST) for _ in range(r.randint(1, 3))) + r.choice(_LAST)
    if kind < 0.92:
        pairs = [r.choice(_CONSONANTS) + r.choice(_VOWELS) for _ in range(r.choice((1, 1, 2, 2, 3)))]
        return "".join(pairs) + r.choice(_CODAS) * (r.random() < 0.8)
    return letters(r, r.randint(2, 9))


def noun(r: Random) -> str:
    """A thing that may be owned, asked for, or acted upon."""
    return r.choice(NOUNS) if r.random() < 0.6 else word(r)


def name(r: Random) -> str:
    """A given or an invented name."""
    kind = r.random()
    if kind < 0.2:
        return r.choice(GIVEN)
    if kind < 0.3:
        return r.choice(FAMILY)
    if kind < 0.4:
        return word(r).title()
    if kind < 0.55:
        return (
            r.choice(_FIRST) + r.choice(_MIDDLE) * (r.random() < 0.6) + r.choice(_FIRST) + r.choice(_LAST)
        ).title()
    pairs = [r.choice(_CONSONANTS) + r.choice(_VOWELS) for _ in range(r.choice((1, 1, 2, 2, 3)))]
    start = r.choice(("", "", "", "a", "e", "i", "o", "u"))
    return (start + "".join(pairs) + r.choice(_CODAS) * (r.random() < 0.85)).title()


def full_name(r: Random) -> str:
    kind = r.random()
    if kind < 0.85:
        return f"{name(r)} {name(r)}"
    if kind < 0.95:
        return f"{name(r)} {r.choice('ABCDEFGHIJKLMNOPRSTVW')}. {name(r)}"
    return f"{r.choice(('Mr', 'Mrs', 'Dr', 'Ms', 'Professor'))} {name(r)}"


def place(r: Random) -> str:
    return r.choice(PLACES) if r.random() < 0.5 else name(r)


def number(r: Random, digits: int) -> str:
    return str(r.randrange(10 ** (digits - 1), 10**digits))


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(n: int) -> str:
    """In words up to 99, otherwise in digits."""
    if n < 20:
        return _ONES[n]
    return str(n) if n > 99 else _TENS[n // 10 - 2] + ("-" + _ONES[n % 10]) * (n % 10 > 0)


def code(r: Random) -> str:
    """Digits, letters, words, and what is made of them."""
    kind = r.randrange(9)
    if kind <= 1:
        return number(r, r.randint(2, 8))
    if kind == 2:
        return "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(1, 4))) + number(
            r, r.randint(1, 5)
        )
    if kind == 3:
        return f"{word(r)}-{number(r, r.randint(1, 4))}"
    if kind == 4:
        return f"{word(r)} {word(r)}"
    if kind == 5:
        return "-".join(letters(r, r.randint(2, 4)).upper() for _ in range(r.randint(1, 3)))
    if kind == 6:
        return f"{number(r, r.randint(1, 3))}-{number(r, r.randint(1, 4))}"
    if kind == 7:
        return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789") for _ in range(r.randint(4, 8)))
    return word(r)


def value(r: Random) -> str:
    """Anything that a fact may be."""
    return r.choice((code, code, code, word, name, full_name, place))(r)


def date(r: Random) -> str:
    day, month, year = r.randint(1, 28), r.randint(1, 12), r.randint(1990, 2039)
    return r.choice(
        (f"{year}-{month:02}-{day:02}", f"{day} {MONTHS[month - 1]}", f"{MONTHS[month - 1]} {day}", f"{day}.{month}.{year}", r.choice(DAYS))
    )  # fmt: skip


def hour(r: Random) -> str:
    h, m = r.randint(0, 23), r.choice((0, 0, 15, 30, 45, r.randint(1, 59)))
    return r.choice((f"{h:02}:{m:02}", f"{h}:{m:02}", f"{h % 12 + 1} {r.choice(('am', 'pm'))}"))


def phrase(r: Random) -> str:
    """A few words, as a title, a subject or a message has them."""
    kind = r.randrange(5)
    if kind == 0:
        return " ".join(word(r) for _ in range(r.randint(1, 4)))
    if kind == 1:
        return f"{r.choice(ADJECTIVES)} {r.choice(NOUNS)}".title()
    if kind == 2:
        return f"The {r.choice(NOUNS)} of the {r.choice(ADJECTIVES)} {r.choice(PEOPLE)}"
    if kind == 3:
        return f"{r.choice(NOUNS)} {r.choice(TIMES)}"
    return f"{name(r)} {r.choice(VERBS)} the {r.choice(NOUNS)}"


def sentence(r: Random) -> str:
    """A sentence that hardly ever comes twice."""
    kind = r.randrange(12)
    a, b = r.choice(ADJECTIVES), r.choice(ADJECTIVES)
    n, m, p, v = r.choice(NOUNS), r.choice(NOUNS), r.choice(PEOPLE), r.choice(VERBS)
    t, who = r.choice(TIMES), name(r)
    if kind == 0:
        return f"The {a} {p} {v} the {n} {t}."
    if kind == 1:
        return f"{who} {v} a {a} {n} near the {m}, and nobody in {place(r)} knew why."
    if kind == 2:
        return f"{t[0].upper() + t[1:]}, the {n} was {a} and the {m} was {b}."
    if kind == 3:
        return f"There were {r.randint(2, 900)} {r.choice(FRUITS)} in the {a} {n} of {who}."
    if kind == 4:
        return f"A {p} from {place(r)} {v} the {a} {n}; {who} {r.choice(VERBS)} it {t}."
    if kind == 5:
        return f"Nobody {v} the {m} until {who}, the {p}, {r.choice(VERBS)} it."
    if kind == 6:
        return f"In {place(r)} the {p}s say that a {a} {n} is worth {r.randint(2, 99)} {m}s."
    if kind == 7:
        return f'"Where is the {a} {n}?" asked {who}, and the {p} {v} the {m}.'
    if kind == 8:
        return f"If the {n} is {a}, the {m} must be {b}, as every {p} knows."
    if kind == 9:
        return f"{full_name(r)} was a {a} {p} who {v} the {n} in {r.randint(1500, 2030)}."
    if kind == 10:
        return f"It {r.choice(('seems', 'is said', 'was clear', 'turned out'))} that the {word(r)} of {place(r)} {v} no {n}."
    return f"Between the {n} and the {m} there is a {a} {word(r)}, {b} and {r.choice(ADJECTIVES)}."


def filler(r: Random, count: int) -> list[str]:
    return [sentence(r) for _ in range(count)]
