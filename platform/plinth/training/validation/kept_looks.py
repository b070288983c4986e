"""The last looks at probes, kept with each checkpoint: what a probe is worth is read there.

    checkpoints/step-00000100/looks.json    by probe its newest looks until this step

The timeline is not signed; a checkpoint's files are. So a look is read from the timeline once, by the commit that comes
after it, and taken from the checkpoint before from then on: who changes the timeline later changes no worth.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from plinth import fingerprint
from plinth.errors import LineageError
from plinth.evaluation.probes.scoring import LAST
from plinth.training.validation.probe_curves import ProbeCurves, ProbeLook

#: File of a checkpoint with the looks.
LOOKS: Final = "looks.json"

Looks = Mapping[str, list[ProbeLook]]


def kept(before: bytes | None, after: int, events: Path, step: int) -> bytes | None:
    """Content of the file; None where nothing was looked at.

    Args:
        before: the same file of an earlier checkpoint, whose bytes were verified; None without one.
        after: step of that checkpoint; 0 without one.
        events: the timeline.
        step: of the checkpoint to be committed.
    """
    curves = ProbeCurves()
    if before is not None:
        curves.looks = {name: list(own) for name, own in read(before).items()}
        curves.require_set(next((own[-1].items for own in curves.looks.values() if own), ""))
    for event in _evaluated(events):
        if after < event["step"] <= step:
            curves.add(event)
    found = {name: [list(look) for look in own[-LAST:]] for name, own in curves.looks.items() if own}
    return fingerprint.canonical({"looks": found}) if found else None


def read(data: bytes) -> Looks:
    """Looks by probe, oldest first.

    Raises:
        LineageError: it is no such file.
    """
    try:
        return of(json.loads(data)["looks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LineageError(f"{LOOKS} holds no looks at probes", found=error) from error


def of(content: Mapping[str, Iterable[Iterable[Any]]]) -> dict[str, list[ProbeLook]]:
    """Looks by probe, from plain data."""
    return {name: [ProbeLook(*look) for look in own] for name, own in content.items()}


def _evaluated(events: Path) -> Iterator[dict[str, Any]]:
    """Events of looks; other lines, and those that were torn, are passed over without being read."""
    if not events.exists():
        return
    with events.open("rb") as stream:
        for line in stream:
            if b'"evaluated"' in line:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("event") == "evaluated" and isinstance(event.get("step"), int):
                    yield event
