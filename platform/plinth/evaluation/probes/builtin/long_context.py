"""Long context: what stands far before the answer, over four distances.

A template is a task at a distance, so that loss by distance can be read from the intervals of templates. An item that
does not fit the model's training length is left out (`scoring` never sees it), since what it asks for would be cut off.

    copy      a passage, other text, the beginning of the passage again -> its end
    recall    sentences on where people live, other text, a name -> the town
    look_up   lines of keys and numbers, a key -> its number
    repeat    a list of words, other text, half of the list again -> the next words

The control of an item is the same text with another passage, with towns or numbers of other people and keys, or with
the list in another order: only what the answer rests on is changed.
"""

from __future__ import annotations

from collections.abc import Callable

from plinth.evaluation.probes.base import Probe, ProbeItem
from plinth.evaluation.probes.builtin import facts
from plinth.evaluation.probes.builtin.facts import words

FAMILY = "long_context"
#: Bytes between what is asked for and the question, about, and how many items there are.
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
NAMES = words("Anna Boris Clara Dmitri Elena Farid Greta Hugo Irene Jonas Katja Leon Mira Nils Olga Pavel")
TOWNS = words(
    "Arden Bexhill Corby Dunmore Elgin Fenwick Garth Holm Ivory Jarrow Kendal Ludlow Marden Norby Oakham Selby"
)

#: Bytes of a line of `look_up`, about.
LINE = 22

#: Of a task: prompt, right answer, wrong answers, and the prompt of the control.
Asked = tuple[str, str, tuple[str, ...], str]


def sentence(name: str) -> str:
    """A sentence of English words."""
    first, second = facts.some(name, ADJECTIVES, 2)
    noun, other = facts.some(name, NOUNS, 2)
    return f"The {first} {noun} {facts.one(name, VERBS)} the {second} {other} {facts.one(name, PLACES)}."


def filler(name: str, size: int) -> str:
    """Sentences of together at least so many bytes."""
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
    people, towns = facts.some(name, NAMES, 5), facts.some(name, TOWNS, 5)
    moved = towns[1:] + towns[:1]
    between = filler(name, size)
    prompt, control = (
        f"{' '.join(f'{who} lives in {town}.' for who, town in zip(people, places, strict=True))}\n\n{between}\n\n"
        f"It is well known that {people[0]} lives in"
        for places in (towns, moved)
    )
    return prompt, f" {towns[0]}.", tuple(f" {town}." for town in (towns[2], towns[3], towns[4])), control


def _look_up(name: str, size: int) -> Asked:
    keys = facts.some(name, [f"{first} {second}" for first in ADJECTIVES for second in NOUNS], max(5, size // LINE))
    numbers = [facts.number(f"{name}/number/{i}", 1000, 9999) for i in range(len(keys))]
    asked, last = keys[0], len(keys) - 1
    swapped = [numbers[last], *numbers[1:last], numbers[0]]
    prompt, control = (
        "\n".join(f"{key}: {number}" for key, number in zip(keys, values, strict=True)) + f"\n\n{asked}:"
        for values in (numbers, swapped)
    )
    return prompt, f" {numbers[0]}", tuple(f" {numbers[place]}" for place in (1, 2, 3)), control


def _repeat(name: str, size: int) -> Asked:
    listed = facts.some(name, NOUNS, 16)
    between = filler(name, size)
    orders = listed, facts.shuffled(f"{name}/order", listed)
    prompt, control = (f"{' '.join(order)}\n\n{between}\n\n{' '.join(listed[:8])}" for order in orders)
    rest = listed[8:12]
    wrong = tuple(f" {' '.join(facts.shuffled(f'{name}/{i}', rest))}" for i in range(20))
    right = f" {' '.join(rest)}"
    return prompt, right, tuple(one for one in dict.fromkeys(wrong) if one != right)[:3], control


TASKS: dict[str, Callable[[str, int], Asked]] = {
    "copy": _copy,
    "recall": _recall,
    "look_up": _look_up,
    "repeat": _repeat,
}


def build() -> list[ProbeItem]:
    """All items: task by task, the nearest first."""
    made = []
    for task, ask in TASKS.items():
        for distance, count in DISTANCES.items():
            template = f"{task}/{distance}"
            for place in range(count):
                name = f"{template}/{place:02d}"
                prompt, gold, wrong, control = ask(f"{FAMILY}/{name}", distance)
                made.append(ProbeItem(name, FAMILY, FAMILY, template, prompt, gold, wrong, control))
    return made


PROBE = Probe(FAMILY, "Copying, recalling and looking up over four distances.", FAMILY, build)
