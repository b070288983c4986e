"""What was measured of a checkpoint, counted again from the rows of its items; stated and counted figures side by
side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.measurement import Measurement
from plinth.records import Manifest
from plinth_registry.measured import by_measurement

#: Relative difference up to which two numbers are one: sums and draws repeat to the last bits on the same libraries.
CLOSE: Final = 1e-6
#: Differences that are listed of one piece of evidence; the others are counted.
LISTED: Final = 3


def differences(stated: Any, counted: Any) -> tuple[str, ...]:
    """A sentence for each figure that is not what was counted; several for one piece of evidence end in how many more.

    Args:
        stated, counted: plain data of the same form, by name.
    """
    found = list(_differences(stated, counted, ""))
    more = (f"{len(found) - LISTED} more figures differ",) if len(found) > LISTED else ()
    return (*found[:LISTED], *more)


def _differences(stated: Any, counted: Any, where: str) -> Iterator[str]:
    if isinstance(stated, Mapping) and isinstance(counted, Mapping):
        ours, theirs = ({str(name): one for name, one in side.items()} for side in (stated, counted))
        for name in sorted({*ours, *theirs}):
            inside = f"{where}/{name}" if where else name
            yield from _differences(ours.get(name, "absent"), theirs.get(name, "absent"), inside)
    elif not _same(stated, counted):
        yield f"{where}: stated {_shown(stated)}, counted {_shown(counted)}"


def _same(stated: Any, counted: Any) -> bool:
    if isinstance(stated, bool) or isinstance(counted, bool) or not _numbers(stated, counted):
        return bool(stated == counted)
    return math.isclose(stated, counted, rel_tol=CLOSE, abs_tol=1e-12)


def _numbers(*given: Any) -> bool:
    return all(isinstance(one, int | float) for one in given)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]


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
