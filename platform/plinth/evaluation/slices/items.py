"""Chooses items of protected sets to measure, apart by what the comparison with training text says of them.

Clean items were looked for and not found, contaminated ones were (what held them was dropped), suspected ones nearly;
of undecided ones nothing is known, because they are too short or common text. A score over all of them together would
hide which is which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plinth.corpus.protected import item_table
from plinth.errors import IntegrityError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.store import Store


@dataclass(frozen=True)
class ScoredItem:
    """An item as all models see it. `text` may be the beginning of a longer one."""

    set: str
    item: str
    status: str
    text: str

    @property
    def data(self) -> bytes:
        """The bytes that bits are counted over."""
        return self.text.encode()


def choose_items(store: Store, protected: Manifest, sets: Mapping[str, Manifest], max_bytes: int) -> list[ScoredItem]:
    """Items of every set and status, up to so many bytes of each, drawn by a hash of their text.

    Raises:
        IntegrityError: the comparison is of other items.
    """
    groups: dict[tuple[str, str], list[ScoredItem]] = {}
    for one in _every(store, protected, sets):
        groups.setdefault((one.set, one.status), []).append(one)
    return [one for group in sorted(groups) for one in _first(groups[group], max_bytes)]


def _every(store: Store, protected: Manifest, sets: Mapping[str, Manifest]) -> Iterator[ScoredItem]:
    (part,) = protected.named(item_table.FILE)
    rows = read_table(store, part, ["set", "item", "status"]).to_pylist()
    judged = iter([row for row in rows if row["set"] in sets])  # probes are judged too, and scored by themselves
    for name in sorted(sets):
        for row in read_table(store, sets[name].parts[0]).to_pylist():
            found = next(judged, None)
            if found is None or (found["set"], found["item"]) != (name, row["item"]):
                raise IntegrityError(
                    "the comparison with protected sets is of other items",
                    found=found,
                    expected=f"item {row['item']} of {name}",
                    remedy="`plinth run --select protected` makes it again",
                )
            yield ScoredItem(name, row["item"], found["status"], row["text"])


def _first(items: Sequence[ScoredItem], max_bytes: int) -> Iterator[ScoredItem]:
    left = max_bytes
    for one in sorted(items, key=lambda one: (hashlib.sha256(one.data).digest(), one.item)):
        cut = one.data[:left].decode(errors="ignore")
        left -= len(one.data)
        if cut:
            yield ScoredItem(one.set, one.item, one.status, cut)
        if left <= 0:
            return
