"""Maths: what a model must compute rather than remember. Wrong answers are near the right one.

Two worked examples of the same template stand before each prompt, so that the form of the answer is known and only the
number is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from plinth.evaluation.probes.base import Probe, ProbeItem
from plinth.evaluation.probes.builtin import facts
from plinth.evaluation.probes.builtin.facts import Cloze, words

FAMILY = "maths"
#: Items of a template, and further ones that are its examples.
ITEMS, EXAMPLES = 12, 2

THINGS = words("apples pencils stamps marbles tickets candles bottles buttons postcards shells coins baskets")
NAMES = words("Anna Ben Clara David Emma Felix Grace Henry Irene Jonas Karin Leo")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
UNITS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
ROMAN = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def in_words(number: int) -> str:
    """An English number of 0 … 99."""
    if number < 20:
        return UNITS[number]
    ten, one = divmod(number, 10)
    return TENS[ten - 2] + (f"-{UNITS[one]}" if one else "")


def in_roman(number: int) -> str:
    """A Roman number of 1 … 100."""
    found = ""
    for value, letters in ROMAN:
        while number >= value:
            found, number = found + letters, number - value
    return found


def _sentence(template: str, key: str, name: str, thing: str) -> tuple[str, int]:
    """A prompt and its number, of numbers drawn by the key."""
    a, b, c = facts.number(f"{key}/a", 12, 79), facts.number(f"{key}/b", 11, 39), facts.number(f"{key}/c", 3, 9)
    match template:
        case "add_digits":
            return f"The sum of {c} and {b % 10} is", c + b % 10
        case "add":
            return f"The sum of {a} and {b} is", a + b
        case "add_hundreds":
            return f"The sum of {a * 7} and {b * 9} is", a * 7 + b * 9
        case "subtract":
            return f"If {b} is taken away from {a + b}, what remains is", a
        case "multiply":
            return f"The product of {c} and {b % 8 + 2} is", c * (b % 8 + 2)
        case "multiply_tens":
            return f"The product of {c} and {b} is", c * b
        case "divide":
            return f"If {c * b} is divided by {c}, the result is", b
        case "sequence":
            return f"The numbers {a}, {a + c}, {a + 2 * c}, {a + 3 * c} are followed by", a + 4 * c
        case "doubling":
            return f"The numbers {b}, {2 * b}, {4 * b}, {8 * b} are followed by", 16 * b
        case "largest":
            numbers = facts.shuffled(key, [a + b, a, b, c])
            return f"The largest of the numbers {', '.join(map(str, numbers))} is", a + b
        case "percent":
            return f"A share of {10 * c} percent of {10 * b} {thing} makes {thing} in number", c * b
        case "buy":
            return f"{name} has {a} {thing} and is given {b} more, so that in the end the number of {thing} is", a + b
        case "give_away":
            return f"{name} had {a + b} {thing} and gave {b} of them away, so that the number of {thing} left is", a
        case "boxes":
            return f"{name} fills {c} boxes with {b} {thing} each, so that the number of {thing} in the boxes is", c * b
        case "count":
            row = facts.shuffled(key, ["a"] * c + ["b"] * (b % 5 + 3))
            return f"Counting the letters a in the row {' '.join(row)}, one finds that their number is", c
        case "minutes":
            return f"A journey of {c} hours and {b} minutes takes a number of minutes that is", 60 * c + b
        case _:
            raise KeyError(template)


NUMBERS = words(
    "add_digits add add_hundreds subtract multiply multiply_tens divide sequence doubling largest percent buy "
    "give_away boxes count minutes"
)


def _number_facts(template: str) -> Iterator[Cloze]:
    """Different prompts of one template, each with wrong numbers near its own."""
    seen: set[str] = set()
    for place in range(1000):
        name = f"{FAMILY}/{template}/{place}"
        prompt, right = _sentence(template, name, facts.one(name, NAMES), facts.one(f"{name}/thing", THINGS))
        if prompt not in seen:
            seen.add(prompt)
            yield Cloze(prompt, f" {right}", _near(name, right))


def _near(name: str, right: int) -> tuple[str, ...]:
    """Three wrong numbers of about as many digits: off by one, by ten, by two or with its digits exchanged."""
    swapped = int(str(right)[::-1])
    options = [right + 1, right - 1, right + 10, right - 10, right + 2, swapped]
    wrong = dict.fromkeys(one for one in facts.shuffled(name, options) if one > 0 and one != right)
    return tuple(f" {one}" for one in list(wrong)[:3])


def _word_facts(template: str) -> Iterator[Cloze]:
    """Templates whose answers are words; wrong answers are those of other items."""
    for place in range(1000):
        a = facts.number(f"{FAMILY}/{template}/{place}", 21, 99)
        match template:
            case "in_words":
                yield Cloze(f"Written in English words, the number {a} is", f" {in_words(a)}")
            case "from_words":
                yield Cloze(f"Written in digits, the number {in_words(a)} is", f" {a}")
            case "roman":
                yield Cloze(f"Written as the Romans wrote it, the number {a} is", f" {in_roman(a)}")
            case "weekdays":
                day = DAYS[(a + a % 5 + 2) % 7]
                yield Cloze(f"If today is {DAYS[a % 7]}, then the day in {a % 5 + 2} days will be a", f" {day}")
            case _:
                raise KeyError(template)


def build() -> list[ProbeItem]:
    """All items, template by template."""
    made: list[ProbeItem] = []
    for template in (*NUMBERS, "in_words", "from_words", "roman", "weekdays"):
        source = _number_facts(template) if template in NUMBERS else _word_facts(template)
        made += facts.with_examples(FAMILY, template, _first(source), EXAMPLES)
    return made


PROBE = Probe(FAMILY, "Arithmetic, sequences, comparisons, numbers in words, small word problems.", FAMILY, build)


def _first(source: Iterator[Cloze]) -> list[Cloze]:
    """The first facts with different prompts."""
    found: dict[str, Cloze] = {}
    while len(found) < ITEMS + EXAMPLES:
        one = next(source)
        found.setdefault(one.prompt, one)
    return list(found.values())
