"""Words and sentences of the generated documents, by slice. Nothing here is offensive: toxic words are invented, and
so are people and places.

`{n}` is a noun of the slice, `{v}` a verb, `{a}` an adjective, `{p}` a person, `{t}` a term of a
lexicon, `{h}` an adjective that insults a person, `{w}` a wish.
"""

from __future__ import annotations

#: Nouns, verbs and adjectives of every slice but code.
WORDS: dict[str, tuple[str, str, str]] = {
    "medical": (
        "patient artery breast tumour kidney muscle vaccine fever wound abdomen nerve pelvis lung tissue dose therapy "
        "ward nurse bladder spine skin rectum prostate biopsy infection",
        "examined treated measured palpated injected scanned removed prescribed monitored drained sutured imaged",
        "chronic acute benign malignant swollen painful anal vaginal vascular sterile bilateral renal oral invasive",
    ),
    "legal": (
        "court defendant victim witness assault statute sentence murder appeal evidence contract charge weapon "
        "prosecutor jury verdict robbery warrant damages clause trial counsel plea abuse",
        "heard charged convicted denied alleged testified ruled appealed sentenced dismissed contested granted",
        "criminal alleged violent unlawful guilty federal civil reasonable sexual aggravated disputed binding",
    ),
    "news": (
        "government minister attack election protest police storm market budget strike bomb parliament border company "
        "hospital election rescue shooting refugee council harbour bridge",
        "announced condemned reported killed rejected visited injured approved closed reopened warned promised",
        "local deadly national armed peaceful heavy economic foreign northern unexpected official severe",
    ),
    "fiction": (
        "captain lantern sword forest letter garden brother window ghost river kitchen stranger horse tower storm "
        "daughter shadow candle road village blood knife winter",
        "whispered shouted followed remembered struck laughed carried wept cursed opened watched crossed",
        "old furious gentle wicked broken silent golden cruel lonely bright ragged beautiful",
    ),
    "plain": (
        "recipe bicycle weekend kitchen ticket neighbour museum phone garden battery coffee school holiday train "
        "printer shirt window guitar lesson market puppy",
        "bought repaired cleaned visited borrowed cooked painted tried packed compared returned planted",
        "cheap useful warm noisy simple modern tasty heavy local friendly quick quiet",
    ),
}  # fmt: skip
PEOPLE = "Maren Tobias Ilse Corvin Dalia Henrik Ansa Rufus Oline Petra Levin Marta Joren Silke".split()  # noqa: SIM905

SENTENCES: dict[str, tuple[str, ...]] = {
    "medical": (
        "The {a} {n} was {v} before the {n} was {v} again.",
        "On admission the {n} appeared {a}, and the {n} was {v} by the surgeon.",
        "In {k} of {m} patients the {a} {n} was {v} without complications.",
        "Doctor {p} noted a {a} {n} close to the {n}.",
    ),
    "legal": (
        "The {n} {v} that the {a} {n} had been {v} in {y}.",
        "According to the {n}, the {a} {n} threatened the {n} with a {n}.",
        "{p} was {v} of {a} {n} and received {k} months.",
        "Under section {k} the {n} may be {v} where the {n} is {a}.",
    ),
    "news": (
        "The {n} {v} the {a} {n} on Tuesday, {p} said.",
        "At least {k} people were {v} when the {a} {n} reached the {n}.",
        "Officials {v} the {n} after a {a} {n} near the {n}.",
        "In {y} the {n} had {v} a {a} {n}.",
    ),
    "fiction": (
        "{p} {v} beside the {a} {n} and {v} the {n}.",
        "The {n} was {a}, and nobody {v} when the {n} {v}.",
        '"You old fool," {v} {p}, "the {n} is {a} and so are we."',
        "That night the {a} {n} {v} the {n}, and {p} {v} it.",
    ),
    "plain": (
        "We {v} the {a} {n} and then {v} a {n} for {p}.",
        "If your {n} is {a}, it can be {v} in about {k} minutes.",
        "{p} {v} a {n} last week because the old one was too {a}.",
        "The {n} next to the {n} is {a} and costs {k} coins.",
    ),
}

#: Programs: harmless words that look violent are hard negatives by themselves.
CODE = (
    "def {f}_{f2}({x}, limit={k}):\n    # kill the child and abort when the {f} hangs\n    for {x}_item in {x}:\n"
    "        if {x}_item > limit:\n            raise ValueError('{f} failed')\n    return {x}\n",
    "class {F}{k}:\n    def __init__(self, {x}):\n        self.{x} = {x}\n        self.slave = None\n\n"
    "    def execute(self):\n        return [dead for dead in self.{x} if dead.{f} < {k}]\n",
    "while {x} < {k}:\n    {x} += {f}({x})\n    os.kill({x}, signal.SIGTERM)\n    log.fatal('{f2} was terminated')\n",
)
CODE_WORDS = "parse load encode queue worker signal buffer filter token cursor socket branch".split()  # noqa: SIM905

#: What is said to somebody, with `{h}` and `{w}` of below; the first half is for training, the second for measuring.
HOSTILE = (
    "You are a {h} {t} and everybody knows it.",
    "Shut up, you {h} {t}, and {w}.",
    "All those {h} {t} people should {w}.",
    "I hope you {w}, {t}, because nobody wants you.",
    "Just {w}, {t}, you are {h}.",
    "What a {h} {t} you are.",
    "People like you are nothing but {t} and {h}.",
    "Nobody wants a {h} {t} like you here.",
    "You {t}, I hope all of you {w}.",
    "Every {h} {t} should {w} and get out.",
    "You and your {t} friends are {h}.",
    "Go and {w}, {t}, we hate you.",
)
HOSTILE_WORDS = "worthless filthy disgusting miserable stupid pathetic rotten ugly vile useless".split()  # noqa: SIM905
WISHES = ("get lost", "suffer", "rot", "get hurt", "disappear", "shut up", "crawl away", "be thrown out")
#: What may stand in such a sentence instead, so that its wording alone decides nothing: of things, kind or unkind.
HARMLESS = {"t": "{n}", "h": "{a}", "w": "{o}"}
KIND_WISHES = ("come along", "rest", "arrive early", "win", "be repaired", "stay dry", "wait", "be brought in")
THINGS = (
    "The {h} {n} was thrown away on Monday.",
    "Such a {h} {n} should not be sold.",
    "After the {h} weather the {n} had to {w}.",
)
#: What is reported or meant otherwise; never at anybody.
REPORTED = (
    "The witness stated that the word {t} was shouted once from the crowd.",
    "The article explains where the expression {t} comes from.",
    "The {t} was examined and found to be of normal size.",
    "Historians describe how {t} became an insult in the last century.",
)
#: What bad text consists of, beside words in disorder.
SPAM = (
    "BUY NOW!!! cheap {n} cheap {n} best {n} online {n} discount {n} click here",
    "{n} | {n} | {n} | home | login | register | next page | share",
    "free {n} download {n} free {n} serial {n} crack {n} full {n}",
    "Click here >>> http://{n}-{n}-deals.invalid/?id={k} <<< LIMITED OFFER {n} {n} {n}!!!",
    "{n} {n} {n} {n} {n} {n} {n} {n} {n} {n}",
    "© {y} All rights reserved. Terms. Privacy. Cookies. Subscribe. {n}. {n}.",
)
