"""Items out of pairs of prompt and answer of one template.

Wrong answers are right answers of other pairs, so each is as likely a word as the right one; the control of a pair is
the prompt of another, so a control differs from the prompt by its subject alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from plinth.evaluation.probes.base import ProbeItem

#: Wrong answers of an item.
WRONG = 3


class Cloze(NamedTuple):
    """A prompt with its answer; `near` are wrong answers of its own, `control` its own control, in place of other
    facts'."""

    prompt: str
    gold: str
    near: tuple[str, ...] = ()
    control: str = ""


def table(pattern: str, rows: str) -> list[Cloze]:
    """Facts of rows `subject=answer`, divided by `;`. `{}` in the pattern is the subject."""
    pairs = (row.strip().split("=") for row in rows.split(";"))
    return [Cloze(pattern.format(subject), f" {answer}") for subject, answer in pairs]


def items(family: str, template: str, facts: Sequence[Cloze], examples: str = "") -> list[ProbeItem]:
    """The items of one template, named by their place in it."""
    made = []
    for place, fact in enumerate(facts):
        name = f"{family}/{template}/{place:02d}"
        by_prompt = {each.prompt: each for each in facts if each.gold != fact.gold}
        others = [by_prompt[prompt] for prompt in shuffled(name, list(by_prompt))]
        near = fact.near or _different(each.gold for each in others)[:WRONG]
        made.append(
            ProbeItem(
                item=f"{template}/{place:02d}",
                probe=family,
                family=family,
                template=template,
                prompt=fact.prompt,
                gold=fact.gold,
                wrong=tuple(near),
                control=fact.control or others[-1].prompt,
                examples=examples,
            )
        )
    return made


def with_examples(family: str, template: str, facts: Sequence[Cloze], count: int = 2) -> list[ProbeItem]:
    """The items of a template whose last facts are the examples before every other, and are not scored."""
    shown = "".join(f"{one.prompt}{one.gold}\n" for one in facts[-count:])
    return items(family, template, facts[:-count], shown)


def _different(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


T = TypeVar("T")


def words(text: str) -> list[str]:
    """A list of words, as it reads best in a source file."""
    return text.split()


def number(name: str, low: int, high: int) -> int:
    """A number of low … high, both included."""
    return low + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (high - low + 1)


def one(name: str, options: Sequence[T]) -> T:
    """One of the options."""
    return options[number(name, 0, len(options) - 1)]


def shuffled(name: str, values: Sequence[T]) -> list[T]:
    """All values, in an order of the name and of how they print: texts and numbers."""
    # the value is hashed too, or two lists of one length would come in the same order
    keyed = [(hashlib.sha256(f"{name}:{i}:{value}".encode()).digest(), value) for i, value in enumerate(values)]
    return [value for _, value in sorted(keyed, key=lambda pair: pair[0])]


def some(name: str, values: Sequence[T], count: int) -> list[T]:
    """So many different ones of the values."""
    return shuffled(name, values)[:count]
