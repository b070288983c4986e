"""Built-in probes with computed items: math, and copying and lookup over long contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plinth.evaluation.probes import base
from plinth.evaluation.probes.base import Cloze, Probe, ProbeItem, words

# Math: results that a model must compute rather than remember. Wrong answers are near the correct one.
#
# Two worked examples of the same template precede each prompt, so that the form of the answer is known and only the
# number is tested.

MATHS = "maths"
#: Items per template, and further items used as its examples.
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
    """Return the English number word for a number from 0 to 99."""
    if number < 20:
        return UNITS[number]
    ten, one = divmod(number, 10)
    return TENS[ten - 2] + (f"-{UNITS[one]}" if one else "")


def in_roman(number: int) -> str:
    """Return the Roman numeral for a number from 1 to 100."""
    found = ""
    for value, letters in ROMAN:
        while number >= value:
            found, number = found + letters, number - value
    return found


def _sentence(template: str, key: str, name: str, thing: str) -> tuple[str, int]:
    """Return a prompt and the number that answers it. The numbers in the prompt are chosen by the hash of `key`."""
    a, b, c = base.number(f"{key}/a", 12, 79), base.number(f"{key}/b", 11, 39), base.number(f"{key}/c", 3, 9)
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
            numbers = base.shuffled(key, [a + b, a, b, c])
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
            row = base.shuffled(key, ["a"] * c + ["b"] * (b % 5 + 3))
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
    """Yield clozes with distinct prompts of one template. Their wrong answers are numbers close to the correct one."""
    seen: set[str] = set()
    for place in range(1000):
        name = f"{MATHS}/{template}/{place}"
        prompt, right = _sentence(template, name, base.one(name, NAMES), base.one(f"{name}/thing", THINGS))
        if prompt not in seen:
            seen.add(prompt)
            yield Cloze(prompt, f" {right}", _near(name, right))


def _near(name: str, right: int) -> tuple[str, ...]:
    """Return three wrong numbers close to `right`: off by one, ten or two, or with digits swapped."""
    swapped = int(str(right)[::-1])
    options = [right + 1, right - 1, right + 10, right - 10, right + 2, swapped]
    wrong = dict.fromkeys(one for one in base.shuffled(name, options) if one > 0 and one != right)
    return tuple(f" {one}" for one in list(wrong)[:3])


def _word_facts(template: str) -> Iterator[Cloze]:
    """Yield clozes of a template whose answers are words. Wrong answers are the answers of other items."""
    for place in range(1000):
        a = base.number(f"{MATHS}/{template}/{place}", 21, 99)
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


def maths() -> list[ProbeItem]:
    """Return all items of the math probe, template by template."""
    made: list[ProbeItem] = []
    for template in (*NUMBERS, "in_words", "from_words", "roman", "weekdays"):
        source = _number_facts(template) if template in NUMBERS else _word_facts(template)
        made += base.with_examples(MATHS, template, _first(source), EXAMPLES)
    return made


MATHS_PROBE = Probe(MATHS, "Arithmetic, sequences, comparisons, numbers in words and word problems.", MATHS, maths)


def _first(source: Iterator[Cloze]) -> list[Cloze]:
    """Return the first clozes with distinct prompts, up to the number that a template needs."""
    found: dict[str, Cloze] = {}
    while len(found) < ITEMS + EXAMPLES:
        one = next(source)
        found.setdefault(one.prompt, one)
    return list(found.values())


# Long context: information far before the answer, over four distances.
#
# A template is a task at a distance, so the intervals of templates show loss by distance. Items longer than the model's
# training length are not scored, since the relevant text would be cut off.
#
#     copy      a passage, other text, the beginning of the passage again -> its end
#     recall    sentences on where people live, other text, a name -> the town
#     look_up   lines of keys and numbers, a key -> its number
#     repeat    a list of words, other text, half of the list again -> the next words
#
# The control of an item is the same text with another passage, with other people's towns or other keys' numbers, or
# with the list in another order: only the information that determines the answer changes.
LONG_CONTEXT = "long_context"
#: Approximate number of bytes between information and question, and number of items per template.
DISTANCES = {200: 12, 1_000: 12, 5_000: 6, 20_000: 3}

ADJECTIVES = words(
    "tall cheerful hollow purple clever sleepy brave curious elegant rusty noisy gloomy humble fragile marble shy "
    "sturdy velvet copper lively solemn wicked thirsty plump striped weary foreign polite shallow tangled"
)
NOUNS = words(
    "otter violin canyon pillow hermit glacier parrot saddle wizard thimble cottage juggler meadow compass beetle "
    "walnut anvil ladder piano sailor cushion tunnel badger helmet curtain barrel spider kettle statue goblin"
)
VERBS = words(
    "admired borrowed greeted ignored lifted polished teased warned chased doubted envied hugged invited judged mocked "
    "praised rescued trusted"
)
PLACES = (
    "under the waterfall",
    "before breakfast",
    "without a word",
    "beside the stable",
    "during the concert",
    "for no reason at all",
)
PEOPLE = words("Anna Boris Clara Dmitri Elena Farid Greta Hugo Irene Jonas Katja Leon Mira Nils Olga Pavel")
TOWNS = words(
    "Arden Bexhill Corby Dunmore Elgin Fenwick Garth Holm Ivory Jarrow Kendal Ludlow Marden Norby Oakham Selby"
)

#: Approximate bytes of a line of `look_up`.
LINE = 22

#: Prompt, correct answer, wrong answers and control prompt of a task.
Asked = tuple[str, str, tuple[str, ...], str]


def sentence(name: str) -> str:
    """Return a sentence of English words."""
    first, second = base.some(name, ADJECTIVES, 2)
    noun, other = base.some(name, NOUNS, 2)
    return f"The {first} {noun} {base.one(name, VERBS)} the {second} {other} {base.one(name, PLACES)}."


def filler(name: str, size: int) -> str:
    """Return random sentences with at least `size` bytes in total."""
    found: list[str] = []
    while sum(map(len, found)) + len(found) < size:
        found.append(sentence(f"{name}/filler/{len(found)}"))
    return " ".join(found)


def _copy(name: str, size: int) -> Asked:
    passages = [[sentence(f"{name}/{which}/{i}") for i in range(3)] for which in ("passage", "other")]
    between = filler(name, size)
    again = passages[0][1].split(" ")
    asked = f"{passages[0][0]} {' '.join(again[:3])}"
    prompt, control = (f"{' '.join(passage)}\n\n{between}\n\n{asked}" for passage in passages)
    return prompt, f" {' '.join(again[3:])}", (), control


def _recall(name: str, size: int) -> Asked:
    people, towns = base.some(name, PEOPLE, 5), base.some(name, TOWNS, 5)
    moved = towns[1:] + towns[:1]
    between = filler(name, size)
    prompt, control = (
        f"{' '.join(f'{who} lives in {town}.' for who, town in zip(people, places, strict=True))}\n\n{between}\n\n"
        f"It is well known that {people[0]} lives in"
        for places in (towns, moved)
    )
    return prompt, f" {towns[0]}.", tuple(f" {town}." for town in (towns[2], towns[3], towns[4])), control


def _look_up(name: str, size: int) -> Asked:
    keys = base.some(name, [f"{first} {second}" for first in ADJECTIVES for second in NOUNS], max(5, size // LINE))
    numbers = [base.number(f"{name}/number/{i}", 1000, 9999) for i in range(len(keys))]
    asked, last = keys[0], len(keys) - 1
    swapped = [numbers[last], *numbers[1:last], numbers[0]]
    prompt, control = (
        "\n".join(f"{key}: {number}" for key, number in zip(keys, values, strict=True)) + f"\n\n{asked}:"
        for values in (numbers, swapped)
    )
    return prompt, f" {numbers[0]}", tuple(f" {numbers[place]}" for place in (1, 2, 3)), control


def _repeat(name: str, size: int) -> Asked:
    listed = base.some(name, NOUNS, 16)
    between = filler(name, size)
    orders = listed, base.shuffled(f"{name}/order", listed)
    prompt, control = (f"{' '.join(order)}\n\n{between}\n\n{' '.join(listed[:8])}" for order in orders)
    rest = listed[8:12]
    wrong = tuple(f" {' '.join(base.shuffled(f'{name}/{i}', rest))}" for i in range(20))
    right = f" {' '.join(rest)}"
    return prompt, right, tuple(one for one in dict.fromkeys(wrong) if one != right)[:3], control


TASKS: dict[str, Callable[[str, int], Asked]] = {
    "copy": _copy,
    "recall": _recall,
    "look_up": _look_up,
    "repeat": _repeat,
}


def long_context() -> list[ProbeItem]:
    """Return all items of the long-context probe, task by task, shortest distance first."""
    made = []
    for task, ask in TASKS.items():
        for distance, count in DISTANCES.items():
            template = f"{task}/{distance}"
            for place in range(count):
                name = f"{template}/{place:02d}"
                prompt, gold, wrong, control = ask(f"{LONG_CONTEXT}/{name}", distance)
                made.append(ProbeItem(name, LONG_CONTEXT, LONG_CONTEXT, template, prompt, gold, wrong, control))
    return made


LONG_CONTEXT_PROBE = Probe(
    LONG_CONTEXT, "Copying, recall and lookup over contexts of four lengths.", LONG_CONTEXT, long_context
)
