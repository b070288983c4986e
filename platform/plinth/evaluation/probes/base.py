"""Probes made by code: their items, the record that describes one, the check of its items, and the catalogue of all.

The last section builds items from prompts and answers, as the built-in probes do: every choice is by hash, so that the
items are the same bytes on every machine and every version of Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pyarrow as pa

from plinth.errors import ExtensionError
from plinth.evaluation.parameters import FAMILIES
from plinth.extensions import Catalogue

# One item of a probe, and what a model is asked about it.
#
#     examples + prompt   -> gold        the score: bits of the right answer
#     examples + prompt   -> each wrong  the margin over the best of them
#     examples + control  -> gold        the control: the same answer where the context does not lead to it
#
# A prompt depends on the item only: examples are text of the item, written when the set is built and never drawn from
# what is scored, so that any subset of the items, in any order, is asked the same.


class ProbeItem(NamedTuple):
    """An item.

    Attributes:
        item: its name, unique in the probe.
        probe: the set that it belongs to: a family, or a user's own.
        family: what the probe is reported under.
        template: items of one template differ by a few words; they are one cluster of an interval.
        prompt: what comes before the answer, without the examples and without white space at its end.
        gold: the right continuation, with the white space that it begins with.
        wrong: wrong continuations; none where only the bits of `gold` count.
        control: a prompt of the same form that does not lead to `gold`: its context is another item's, or shuffled.
        examples: few-shot examples before the prompt; empty, or with the separator at its end.
    """

    item: str
    probe: str
    family: str
    template: str
    prompt: str
    gold: str
    wrong: tuple[str, ...]
    control: str
    examples: str = ""

    @property
    def chance(self) -> float:
        """Accuracy of a model that guesses; 0 where there is nothing to choose from."""
        return 1 / (1 + len(self.wrong)) if self.wrong else 0.0

    @property
    def text(self) -> str:
        """Text that training must not contain: prompt, right and wrong answers, without the examples.

        It includes wrong answers, because a page that states the same fact in its own words is not a copy of the item.
        """
        return "\n".join((self.prompt + self.gold, *self.wrong))


#: Columns of a part of items; the comparison with training text reads `item` and `text`.
SCHEMA = pa.schema(
    [
        pa.field("item", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("probe", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("template", pa.string(), nullable=False),
        pa.field("prompt", pa.large_string(), nullable=False),
        pa.field("gold", pa.large_string(), nullable=False),
        pa.field("wrong", pa.list_(pa.large_string()), nullable=False),
        pa.field("control", pa.large_string(), nullable=False),
        pa.field("examples", pa.large_string(), nullable=False),
    ]
)


def to_table(items: Sequence[ProbeItem]) -> pa.Table:
    """Items as rows of `SCHEMA`, in order."""
    rows = [one._asdict() | {"wrong": list(one.wrong), "text": one.text} for one in items]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> list[ProbeItem]:
    """Return the items of a table with `SCHEMA`, in order."""
    rows = table.select(list(ProbeItem._fields)).to_pylist()
    return [ProbeItem(**row | {"wrong": tuple(row["wrong"])}) for row in rows]


def pairs(item: ProbeItem) -> Iterator[tuple[str, str]]:
    """(context, continuation) of every likelihood that the item needs: gold, each wrong answer, gold under control."""
    context = item.examples + item.prompt
    yield context, item.gold
    for answer in item.wrong:
        yield context, answer
    yield item.examples + item.control, item.gold


#: Fields of an item that are texts.
TEXTS = ("item", "template", "prompt", "gold", "control", "examples")


@dataclass(frozen=True)
class Probe:
    """A probe whose items are made by code.

    Args:
        name: in `evaluation.probes.families` of a recipe.
        description: one sentence.
        family: what its items are reported under, one of `parameters.FAMILIES`.
        build: makes all items, the same ones on every machine: it reads no clock, no network, and nothing of the run.
        version: raised with any change of an item.
    """

    name: str
    description: str
    family: str
    build: Callable[[], Sequence[ProbeItem]]
    version: str = "1"


def items_of(probe: Probe) -> list[ProbeItem]:
    """Return the items of a probe, under its name and family.

    Raises:
        ExtensionError: its code fails, or makes invalid items.
    """
    try:
        made = list(probe.build())
    except Exception as error:
        raise _unusable(probe, f"{type(error).__name__}: {error}") from error
    fault = next(_faults(probe, made), None)
    if fault is not None:
        raise _unusable(probe, fault)
    return [one._replace(probe=probe.name, family=probe.family) for one in made]


def _faults(probe: Probe, made: Sequence[object]) -> Iterator[str]:
    if probe.family not in FAMILIES:
        yield f"the family {probe.family!r}"
    if not made:
        yield "no item"
    seen = set[str]()
    for number, one in enumerate(made):
        if not isinstance(one, ProbeItem):
            yield f"item {number} is a {type(one).__name__}"
            return
        fault = fault_of(one) or ("its name stands twice" if one.item in seen else "")
        if fault:
            yield f"item {number} ({one.item!r}): {fault}"
        seen.add(one.item)


def fault_of(one: ProbeItem) -> str:
    """Return the reason why an item cannot be scored; "" if it can."""
    texts = [getattr(one, field) for field in TEXTS]
    if not isinstance(one.wrong, tuple) or not all(isinstance(text, str) for text in (*texts, *one.wrong)):
        return f"{', '.join(TEXTS)} are texts, and `wrong` is a tuple of texts"
    try:
        "".join((*texts, *one.wrong)).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair is no text"
    if not one.item or not one.prompt or not all(answer.strip() for answer in (one.gold, *one.wrong)):
        return "its name, its prompt or an answer is empty"
    if one.prompt != one.prompt.rstrip() or one.control != one.control.rstrip():
        return "white space at the end of a prompt belongs to the answers"
    if len({one.gold, *one.wrong}) != 1 + len(one.wrong):
        return "an answer stands twice"
    return "its control is empty, or its own prompt" if one.control in ("", one.prompt) else ""


def _unusable(probe: Probe, found: str) -> ExtensionError:
    return ExtensionError(
        f"the probe {probe.name!r} makes no items that can be scored",
        found=found,
        expected=f"a list of plinth.evaluation.probes.base.ProbeItem, of a family {', '.join(FAMILIES)}",
        remedy="repair or uninstall the package that has it; see docs/extending.md",
    )


#: Version of all built-in items; raised with any change of one.
VERSION = "1"

#: Each built-in family's own probe, and those of installed packages (entry points of the group `plinth.probes`).
PROBES = Catalogue(
    "plinth.probes",
    "probe",
    Probe,
    {
        "knowledge": "plinth.evaluation.probes.knowledge:KNOWLEDGE_PROBE",
        "code": "plinth.evaluation.probes.code:CODE_PROBE",
        "maths": "plinth.evaluation.probes.maths:MATHS_PROBE",
        "long_context": "plinth.evaluation.probes.maths:LONG_CONTEXT_PROBE",
        "languages": "plinth.evaluation.probes.languages:LANGUAGES_PROBE",
        "safety": "plinth.evaluation.probes.knowledge:SAFETY_PROBE",
    },
)


def versions(names: Sequence[str]) -> dict[str, str]:
    """Version, package and digest of the source of each that is not built in; those of this package are `VERSION`."""
    return {name: PROBES.find(name).version for name in names if name not in PROBES.built_in}


# Items out of pairs of prompt and answer of one template.
#
# Wrong answers are right answers of other pairs, so each is as likely a word as the right one; the control of a pair is
# the prompt of another, so a control differs from the prompt by its subject alone.

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
    """Return the items of one template, named by their place in it."""
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
    """Return the items of a template whose last facts are the examples before every other, and are not scored."""
    shown = "".join(f"{one.prompt}{one.gold}\n" for one in facts[-count:])
    return items(family, template, facts[:-count], shown)


def _different(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


T = TypeVar("T")


def words(text: str) -> list[str]:
    """Split a list of words."""
    return text.split()


def number(name: str, low: int, high: int) -> int:
    """Return a number from low to high, both included."""
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
    """Return `count` different values."""
    return shuffled(name, values)[:count]
