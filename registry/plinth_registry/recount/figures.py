"""Stated and counted figures side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
