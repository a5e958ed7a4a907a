"""Names, things and sentences of the tasks: none of them is in the training data (`tests/accept`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

GIVEN = "Abigail Bertram Cordelia Dmitri Eleonora Ferdinand Gwendolyn Humphrey Isolde Jasper Katarina Leopold Mirabel Nikolai Ophelia Percival Rosalind Sebastian Theodora Valentin Wilhelmina Zacharias Alistair Brunhilde Caspian Desdemona Evander Florian Genevieve Hortense Ignatius Jocelyn Lucinda Marcellus Nerissa Octavia Philippa Reginald Seraphina Tobias Ulysses Vivienne Winifred Yolanda".split()
FAMILY = "Abernathy Blackwood Cavendish Dunmore Ellsworth Fairbanks Gallagher Hawthorne Ironside Jorgensen Kingsley Lockhart Merriweather Northcott Oakeshott Pemberton Ravenscroft Sinclair Thistlewood Underhill Vandermeer Wainwright Yarborough Zimmerman Ashdown Broadbent Carmichael Drummond Eastwick Featherstone Goldsworthy".split()
PLACES = "Aberdeen Brighton Coventry Dortmund Edinburgh Florence Gdansk Helsinki Inverness Jena Krakow Lausanne Marrakesh Nottingham Odense Palermo Rotterdam Salzburg Trieste Utrecht Verona Wellington Yokohama Zwolle".split()
THINGS = "vault combination|membership code|parking permit|library card|voucher code|wardrobe key|safe word|pass phrase|registration mark|batch label|inventory code|conference badge|radio frequency|mailbox number|loyalty number".split(
    "|"
)
GOODS = "marbles acorns feathers pebbles lanterns ribbons tulips badges walnuts spoons beads saddles kites magnets".split()
WORDS = "amber basil cobalt dune ember falcon glacier hazel indigo jasmine krypton lotus maple nectar onyx pepper quartz raven saffron thistle umber velvet willow xenon yarrow zephyr comet dahlia ebony fern".split()

_SUBJECTS = "An elderly beekeeper|The retired conductor|A travelling juggler|Their youngest cousin|The village postman|A barefoot pilgrim|The night watchman|An amateur astronomer|The ferryman's widow|A visiting scholar".split(
    "|"
)
_ACTS = "sharpened whitewashed auctioned rehearsed tasted unfolded postponed catalogued applauded translated stitched varnished smuggled weighed".split()
_OBJECTS = "the copper weathervane|a bundle of almanacs|the crooked signpost|several jars of honey|a pocket telescope|the velvet armchair|an unfinished sonata|the harvest accounts|a lopsided snowman|the parish records|a crate of oranges|the broken sundial".split(
    "|"
)
_PLACES = "behind the observatory|beside the canal|under the old viaduct|at the edge of the moor|near the customs house|along the towpath|above the apothecary|inside the greenhouse|outside the tavern|beyond the vineyard".split(
    "|"
)
_ENDS = "while the choir practised|before the lamps were lit|though nobody had asked|as the fog came down|until the bells fell silent|because the wind had turned|after the fair had moved on|and the children laughed|with a borrowed wheelbarrow|to the dismay of the council".split(
    "|"
)


def full_name(r: Random) -> str:
    return f"{r.choice(GIVEN)} {r.choice(FAMILY)}"


def code(r: Random) -> str:
    """A value that cannot be guessed."""
    kind = r.randrange(4)
    if kind == 0:
        return str(r.randrange(1000, 1000000))
    if kind == 1:
        return f"{r.choice(WORDS)}-{r.randrange(10, 1000)}"
    if kind == 2:
        return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(3)) + str(r.randrange(10, 10000))
    return f"{r.choice(WORDS)} {r.choice(WORDS)}"


def distinct(r: Random, make: Callable[[Random], str], count: int) -> list[str]:
    """`count` different values of `make(r)`."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(r)] = None
    return list(found)


def sentence(r: Random) -> str:
    """Filler with a number in it, so that hardly any comes twice."""
    parts = [r.choice(_SUBJECTS), r.choice(_ACTS), r.choice(_OBJECTS), r.choice(_PLACES)]
    kind = r.randrange(3)
    if kind == 0:
        return f"{' '.join(parts)}, {r.choice(_ENDS)}."
    if kind == 1:
        return f"In {r.randrange(1400, 1990)} {parts[0][0].lower()}{parts[0][1:]} {' '.join(parts[1:])}."
    return f"{' '.join(parts)} for the sake of {r.randrange(3, 400)} {r.choice(GOODS)}, {r.choice(_ENDS)}."
