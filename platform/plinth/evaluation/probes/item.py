"""One item of a probe, and what a model is asked about it.

    examples + prompt   -> gold        the score: bits of the right answer
    examples + prompt   -> each wrong  the margin over the best of them
    examples + control  -> gold        the control: the same answer where the context does not lead to it

A prompt depends on the item only: examples are text of the item, written when the set is built and never drawn from
what is scored, so that any subset of the items, in any order, is asked the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa


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
        """What training must not hold: prompt, right and wrong answers, without the examples.

        Wrong answers belong to it: a page that states the same fact in its own words is no copy of the item.
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
    """The items of a table with `SCHEMA`, in order."""
    rows = table.select(list(ProbeItem._fields)).to_pylist()
    return [ProbeItem(**row | {"wrong": tuple(row["wrong"])}) for row in rows]


def pairs(item: ProbeItem) -> Iterator[tuple[str, str]]:
    """(context, continuation) of every likelihood that the item needs: gold, each wrong answer, gold under control."""
    context = item.examples + item.prompt
    yield context, item.gold
    for answer in item.wrong:
        yield context, answer
    yield item.examples + item.control, item.gold
