"""Generator of labeled documents from the words of several slices. The same seed gives the same documents on every
machine.

Good documents of a slice contain words that a crude gate would remove: anatomy in medical text, crimes in legal text
and news, insults between fictional people, violent words in programs. The sentences inserted for training and for
measurement differ.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

# Words and sentences of the generated documents, by slice. Nothing here is offensive: toxic words are invented, and
# so are people and places.
#
# `{n}` is a noun of the slice, `{v}` a verb, `{a}` an adjective, `{p}` a person, `{t}` a term of a
# lexicon, `{h}` an adjective that insults a person, `{w}` a wish.

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

#: Sentences addressed to a person, with `{h}` and `{w}` below; the first half is for training, the second for tests.
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
#: Substitutes in such a sentence, so that its wording alone decides nothing: about things, kind or unkind.
HARMLESS = {"t": "{n}", "h": "{a}", "w": "{o}"}
KIND_WISHES = ("come along", "rest", "arrive early", "win", "be repaired", "stay dry", "wait", "be brought in")
THINGS = (
    "The {h} {n} was thrown away on Monday.",
    "Such a {h} {n} should not be sold.",
    "After the {h} weather the {n} had to {w}.",
)
#: Sentences that report, or mean something else; never addressed to anyone.
REPORTED = (
    "The witness stated that the word {t} was shouted once from the crowd.",
    "The article explains where the expression {t} comes from.",
    "The {t} was examined and found to be of normal size.",
    "Historians describe how {t} became an insult in the last century.",
)
#: Parts of bad text, in addition to shuffled words.
SPAM = (
    "BUY NOW!!! cheap {n} cheap {n} best {n} online {n} discount {n} click here",
    "{n} | {n} | {n} | home | login | register | next page | share",
    "free {n} download {n} free {n} serial {n} crack {n} full {n}",
    "Click here >>> http://{n}-{n}-deals.invalid/?id={k} <<< LIMITED OFFER {n} {n} {n}!!!",
    "{n} {n} {n} {n} {n} {n} {n} {n} {n} {n}",
    "© {y} All rights reserved. Terms. Privacy. Cookies. Subscribe. {n}. {n}.",
)

Use = Literal["train", "test"]
SLICES = (*WORDS, "code")
CATEGORIES = ("insult", "threat", "group")
#: Invented terms that have an innocent meaning, too, weigh less than this; generated good text may hold them.
AMBIGUOUS_BELOW = 0.5

_SYLLABLES = "bra dru fle gor gru klo mur nar pla quo rif ska sto tra ubb vex wog yel zan zub".split()  # noqa: SIM905
_CLOSES = "bik dle fot gim lok mox nuk pash rint sk tof vik wix zle".split()  # noqa: SIM905


@dataclass(frozen=True)
class Labelled:
    """Generated document with its label. `bad` is True if a gate should remove the document; `made_as` is the kind of
    document."""

    text: str
    bad: bool
    slice: str
    made_as: str


@dataclass(frozen=True)
class Term:
    """Term that may be inserted into a document."""

    text: str
    weight: float
    category: str


def invented(seed: int, count: int = 60) -> tuple[Term, ...]:
    """Return a vocabulary of invented words; every fourth word is ambiguous."""
    rng, found = random.Random(f"terms {seed}"), dict[str, None]()
    while len(found) < count:
        found[rng.choice(_SYLLABLES) + rng.choice(("", rng.choice(_SYLLABLES))) + rng.choice(_CLOSES)] = None
    return tuple(
        Term(word, 0.3 if at % 4 == 3 else 0.6 + 0.1 * (at % 4), CATEGORIES[at % 3]) for at, word in enumerate(found)
    )


def lexicon_file(terms: Sequence[Term]) -> str:
    """Return the terms as the text of a lexicon file (`plinth.corpus.lists`)."""
    lines = [f"{term.text}\t{term.weight:.2f}\t{term.category}\n" for term in terms]
    return "# invented words, for tests and for measuring\n" + "".join(lines)


def toxicity(seed: int, count: int, terms: Sequence[Term], use: Use = "test") -> list[Labelled]:
    """Return `count` clean and `count` toxic documents of every slice.

    One third of the clean documents report a term or use an ambiguous term. Another third have sentences that begin
    like insults. One third of the toxic documents have obfuscated terms.
    """
    strong = [term for term in terms if term.weight >= AMBIGUOUS_BELOW] or list(terms)
    weak = [term for term in terms if term.weight < AMBIGUOUS_BELOW] or strong
    out = []
    for name, rng, at in _each(f"toxicity {use} {seed}", count):
        text, made_as = good(rng, name), ("reported", "friendly", "clean")[at % 3]
        if made_as == "reported":
            text = _planted(rng, text, [rng.choice(REPORTED).format(t=rng.choice(weak).text)])
        elif made_as == "friendly":
            text = _planted(rng, text, [_friendly(rng, one, name) for one in rng.sample(_half(HOSTILE, use), 2)])
        out.append(Labelled(text, False, name, made_as))
        out.append(_toxic(rng, name, at % 3 == 0, strong, use))
    return out


def _toxic(rng: random.Random, name: str, hidden: bool, strong: Sequence[Term], use: Use) -> Labelled:
    sentences = rng.sample(_half(HOSTILE, use), rng.randint(1, 3))
    said = []
    for sentence in sentences:
        word = rng.choice(strong).text
        said.append(_hurting(rng, sentence).replace("{t}", obfuscated(rng, word) if hidden else word))
    text = _planted(rng, good(rng, name), said)
    return Labelled(text, True, name, "disguised" if hidden else "open")


def quality(seed: int, count: int, terms: Sequence[Term] = (), use: Use = "test") -> list[Labelled]:
    """Return `count` good and `count` bad documents of every slice. Bad documents are spam, lists of words, shuffled
    words, or one repeated sentence."""
    out = []
    for name, rng, at in _each(f"quality {use} {seed}", count):
        out.append(Labelled(good(rng, name), False, name, "good"))
        made_as, make = _BAD[at % len(_BAD)]
        out.append(Labelled(make(rng, name), True, name, made_as))
    return out


def good(rng: random.Random, name: str) -> str:
    """Return a good document of a slice, which consists of paragraphs, or of programs in the slice `code`."""
    if name == "code":
        return "\n\n".join(_program(rng) for _ in range(rng.randint(3, 6)))
    paragraphs = [[_sentence(rng, name) for _ in range(rng.randint(3, 5))] for _ in range(rng.randint(2, 4))]
    return "\n\n".join(" ".join(sentences) for sentences in paragraphs)


def obfuscated(rng: random.Random, word: str) -> str:
    """Return a word in a spelling that readers recognize but a plain word list does not match."""
    ways: list[Callable[[], str]] = [
        lambda: ".".join(word),
        lambda: " ".join(word),
        lambda: word[:1] + word[1:].translate(str.maketrans("aeiost", "431057")),
        lambda: re.sub(r"([aeiou])", r"\1\1\1\1", word, count=1),
        lambda: "\u200b".join((word[:2], word[2:])),
    ]
    made = [way() for way in ways]
    return rng.choice([other for other in made if other != word])


def _each(key: str, count: int) -> list[tuple[str, random.Random, int]]:
    """Return a separate random generator for each document, so that additional documents do not change the others."""
    return [(name, random.Random(f"{key} {name} {at}"), at) for name in SLICES for at in range(count)]


def _planted(rng: random.Random, text: str, sentences: Sequence[str]) -> str:
    """Return a text with the sentences inserted at random positions. In a program, the sentences become comments."""
    lines = text.split("\n")
    for sentence in sentences:
        at = rng.randrange(len(lines))
        is_code = any(mark in text for mark in ("def ", "class ", "while "))
        lines[at] = f"{lines[at]}\n# {sentence}" if is_code else f"{lines[at]} {sentence}".strip()
    return "\n".join(lines)


def _half(sentences: Sequence[str], use: Use) -> Sequence[str]:
    middle = len(sentences) // 2
    return sentences[:middle] if use == "train" else sentences[middle:]


def _sentence(rng: random.Random, name: str) -> str:
    return _worded(rng, rng.choice(SENTENCES[name]), name)


def _hurting(rng: random.Random, text: str) -> str:
    for slot, words in (("{h}", HOSTILE_WORDS), ("{w}", WISHES), ("{o}", KIND_WISHES)):
        if slot in text:
            text = text.replace(slot, rng.choice(words))
    return text


def _friendly(rng: random.Random, hostile: str, name: str) -> str:
    """Return a harmless sentence that begins like an insult, or an unkind sentence about a thing."""
    text = rng.choice(THINGS) if rng.random() < 0.5 else hostile
    if text is hostile:
        for slot, other in HARMLESS.items():
            text = text.replace(f"{{{slot}}}", other)
    return _worded(rng, text, "plain" if name == "code" else name)


def _worded(rng: random.Random, text: str, name: str) -> str:
    text = _hurting(rng, text)
    for slot, words in zip("nva", WORDS[name], strict=True):
        while f"{{{slot}}}" in text:
            text = text.replace(f"{{{slot}}}", rng.choice(words.split()), 1)
    return _filled(rng, text)


def _filled(rng: random.Random, text: str) -> str:
    numbers = {"k": rng.randint(2, 90), "m": rng.randint(100, 400), "y": rng.randint(1950, 2024)}
    return text.format(p=rng.choice(PEOPLE), **numbers)


def _program(rng: random.Random) -> str:
    first, second = rng.sample(CODE_WORDS, 2)
    values = {"f": first, "f2": second, "F": first.capitalize(), "x": rng.choice("abcxyz"), "k": rng.randint(2, 90)}
    return rng.choice(CODE).format(**values)


def _nouns(name: str) -> list[str]:
    return CODE_WORDS if name == "code" else WORDS[name][0].split()


def _spam(rng: random.Random, name: str) -> str:
    lines = []
    for _ in range(rng.randint(6, 14)):
        text = rng.choice(SPAM)
        while "{n}" in text:
            text = text.replace("{n}", rng.choice(_nouns(name)), 1)
        lines.append(_filled(rng, text))
    return "\n".join(lines)


def _list(rng: random.Random, name: str) -> str:
    return "\n".join(f"{rng.choice('-*•|')} {rng.choice(_nouns(name))}" for _ in range(rng.randint(30, 80)))


def _disorder(rng: random.Random, name: str) -> str:
    words = good(rng, name).split()
    rng.shuffle(words)
    return " ".join(word.upper() if rng.random() < 0.2 else word.strip(".,") for word in words)


def _repeated(rng: random.Random, name: str) -> str:
    line = _program(rng) if name == "code" else _sentence(rng, name)
    return "\n".join([line] * rng.randint(12, 30))


_BAD: tuple[tuple[str, Callable[[random.Random, str], str]], ...] = (
    ("spam", _spam),
    ("list", _list),
    ("disorder", _disorder),
    ("repeated", _repeated),
)
