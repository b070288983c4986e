"""What was measured of a checkpoint, counted again from the rows of its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.measurement import Measurement
from plinth.records import Manifest
from plinth_registry.measured import by_measurement
from plinth_registry.recount.figures import differences

#: Faults by digests of a manifest and of what is measured beside it: tables are named by digest, so that one look in a
#: process is enough.
_KNOWN: dict[tuple[str, ...], tuple[str, ...]] = {}
MOST_KNOWN: Final = 4096


def faults(ctx: Context, found: Mapping[str, Manifest]) -> dict[str, tuple[str, ...]]:
    """What is wrong with the figures of measurements, by their names; those without a fault are left out.

    Args:
        found: manifests by asset, which the role that answers for them has signed.
    """
    listed = {}
    for name, (one, made) in by_measurement(found).items():
        if wrong := tuple(f"{asset}: {said}" for asset in made for said in _counted(ctx, one, asset, found)):
            listed[name] = wrong
    return listed


def _counted(ctx: Context, one: Measurement, asset: str, found: Mapping[str, Manifest]) -> tuple[str, ...]:
    if one.recount is None:
        return ()
    key = (found[asset].digest, *sorted(made.digest for made in found.values()))
    if key in _KNOWN:
        return _KNOWN[key]
    try:
        wrong = differences(*one.recount(ctx, found[asset], found))
    except PlinthError as error:  # a table that is absent may come back
        return (f"cannot be counted again: {error.what}",)
    except Exception as error:  # tables may hold anything, and so may the code of another package
        return (f"cannot be counted again: {type(error).__name__}: {error}",)
    if len(_KNOWN) >= MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = wrong
    return wrong
