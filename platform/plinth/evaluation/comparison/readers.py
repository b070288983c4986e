"""Measured manifests of two models as pairs.

Readers take columns and go through them by Arrow and numpy; one measure is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from plinth.evaluation.comparison.pairs import Pairs
from plinth.evaluation.measurement import measurement_of
from plinth.records import Manifest
from plinth.storage.store import Store

Reader = Callable[[Store, Manifest, Manifest], Iterator[Pairs]]


def reader(asset: str) -> Reader | None:
    """The reader of an asset; None where it measures nothing that two models can be compared by."""
    found = measurement_of(asset)
    return found.pairs if found else None


def read(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[Pairs]:
    """Pairs of every asset that both models were measured by, in the order of their names; measures without a pair too.

    Raises:
        IntegrityError: both were measured on other items.
    """
    for asset in sorted(set(a) & set(b)):
        if one := reader(asset):
            yield from one(store, a[asset], b[asset])
