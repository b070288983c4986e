"""Bytes of a workspace by age, and by the reason why they are kept, with what a month of them costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from plinth.operation.retention.survey import DAY_S, Survey
from plinth.records import Frozen

#: Upper ends of the ages that are told apart, in days.
AGES: Final = ((7.0, "under 7 days"), (30.0, "7 to 30 days"), (90.0, "30 to 90 days"), (365.0, "90 days to a year"))
OLDER: Final = "over a year"
UNNEEDED: Final = "nothing needs it"


class StorageRow(Frozen):
    """Objects of one age or reason: bytes, those that nothing needs, and what a month of either costs."""

    name: str
    objects: int
    bytes: int
    unneeded_bytes: int
    month: float
    unneeded_month: float


def by_age(looked: Survey, gigabyte_month: float) -> list[StorageRow]:
    """The youngest first; the age of an object is the time since it was written, or used, last."""
    order = [name for _, name in AGES] + [OLDER]
    rows = _rows(looked, gigabyte_month, lambda modified, _: _age(looked.at - modified))
    return [rows[name] for name in order if name in rows]


def by_reason(looked: Survey, gigabyte_month: float) -> list[StorageRow]:
    """The dearest first; what is kept for several reasons counts under the first."""
    rows = _rows(looked, gigabyte_month, lambda _, reason: reason)
    return sorted(rows.values(), key=lambda row: (-row.bytes, row.name))


def _rows(looked: Survey, price: float, name: Callable[[float, str], str]) -> dict[str, StorageRow]:
    objects, size, unneeded = defaultdict[str, int](int), defaultdict[str, int](int), defaultdict[str, int](int)
    everything = [*looked.kept, *((one, UNNEEDED) for one in looked.unneeded)]
    for one, reason in everything:
        row = name(one.modified, reason)
        objects[row] += 1
        size[row] += one.bytes
        unneeded[row] += one.bytes if reason == UNNEEDED else 0
    return {
        row: StorageRow(
            name=row,
            objects=objects[row],
            bytes=size[row],
            unneeded_bytes=unneeded[row],
            month=size[row] / 1e9 * price,
            unneeded_month=unneeded[row] / 1e9 * price,
        )
        for row in objects
    }


def _age(age_s: float) -> str:
    return next((name for days, name in AGES if age_s < days * DAY_S), OLDER)
