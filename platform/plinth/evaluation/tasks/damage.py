"""Lines of a data file that cannot be an item, set aside and counted.

`datasets` refuses a whole file for one line that is no JSON, or whose field is of another type than in the lines
before. Here such a line costs one item. A line is damaged that is no UTF-8, no JSON object, that lacks a field which
most lines have, or whose field is of another type than in most lines; null is of every type.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Files in which every line is one item.
SUFFIXES = (".jsonl", ".ndjson")


class DamagedLine(NamedTuple):
    """A line that is no item: its file, its number from 1, and why."""

    file: str
    line: int
    reason: str


def set_aside(folder: Path) -> list[DamagedLine]:
    """Rewrite every file of lines below a folder without its damaged ones; returns those."""
    found: list[DamagedLine] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
        lines = path.read_bytes().split(b"\n")
        reasons = damaged(lines)
        if reasons:
            path.write_bytes(b"\n".join(line for number, line in enumerate(lines, 1) if number not in reasons))
        name = path.relative_to(folder).as_posix()
        found += [DamagedLine(name, number, reason) for number, reason in sorted(reasons.items())]
    return found


def damaged(lines: Sequence[bytes]) -> dict[int, str]:
    """Numbers of the damaged lines, from 1, with the reason; blank lines are none."""
    reasons: dict[int, str] = {}
    records: dict[int, dict[str, str]] = {}  # of a line: the type of each field
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode())
            if not isinstance(record, dict):
                raise ValueError(f"{_kind(record)}, not an object")
            records[number] = {name: _kind(value) for name, value in record.items()}
        except (ValueError, RecursionError) as error:
            reasons[number] = f"{type(error).__name__}: {error}"[:200]
    usual = _usual(list(records.values()))
    for number, fields in records.items():
        wrong = [
            f"field {name!r} is {fields.get(name, 'absent')}, elsewhere {kind}"
            for name, kind in usual.items()
            if not _fits(fields.get(name, "absent"), kind)
        ]
        if wrong:
            reasons[number] = "; ".join(wrong)[:200]
    return reasons


def _usual(records: Sequence[dict[str, str]]) -> dict[str, str]:
    """The type that most lines have, of each field that most lines have."""
    kinds: dict[str, Counter[str]] = {}
    for fields in records:
        for name, kind in fields.items():
            kinds.setdefault(name, Counter())[kind] += 1
    found = {}
    for name, counts in kinds.items():
        if 2 * counts.total() > len(records):
            found[name] = max(
                (kind for kind in counts if kind != "null"), key=lambda kind: counts[kind], default="null"
            )
    return found


def _fits(kind: str, usual: str) -> bool:
    return (
        kind in (usual, "null")
        or usual == "null"
        or ("empty list" in (kind, usual) and "list" in kind and "list" in usual)
    )


def _kind(value: Any) -> str:
    """The type of a JSON value as a table of them needs it to be alike."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            kinds = sorted({_kind(one) for one in value} - {"null"})
            return f"list of {' and '.join(kinds)}" if kinds else "empty list"
    return "object"
