"""The numbers of an event by name, the same in every sink.

    step        its numbers under their own names; `parts/forward`, `besides/save`, `device_memory/peak` and the like
    evaluated   `heldout/SLICE`; `probe/NAME` (bits per byte), `probe/NAME/control` and the like
    checkpoint  `checkpoint/seconds`, `checkpoint/bytes`, `checkpoint/stall_s`, `checkpoint/wait_s`
    others      `events/KIND`: 1, where something happened that a page marks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Fields that place an event and are no quantities.
PLACE = frozenset({"seq", "step", "time", "attempt", "number"})

#: Kinds of events that are marked.
MARKED = frozenset(
    {"resumed", "reshaped", "intervention", "rolled_back", "skipped", "amended", "restart", "refused", "save_failed"}
    | {"rank_failed", "stragglers", "device_error", "hang", "profiled", "signal", "stopped_by_rule"}
)


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event; empty where it has none that a sink draws. Text such as `inf` is left out."""
    kind = event["event"]
    if kind == "step":
        own = {name: value for name, value in event.items() if name not in PLACE}
        nested = {f"{name}/{key}": value for name, each in own.items() for key, value in _numbers(each).items()}
        nested.pop("slowest/rank", None)  # a name
        return _finite(own) | _finite(nested)
    if kind == "evaluated":
        found: dict[str, Any] = {f"heldout/{name}": value for name, value in event.get("slices", {}).items()}
        for name, scores in event.get("probes", {}).items():
            found |= {f"probe/{name}" + ("" if key == "score" else f"/{key}"): value for key, value in scores.items()}
        return _finite(found)
    if kind == "checkpoint":
        return _finite({f"checkpoint/{name}": event.get(name) for name in ("seconds", "bytes", "stall_s", "wait_s")})
    return {f"events/{kind}": 1.0} if kind in MARKED else {}


def _numbers(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
