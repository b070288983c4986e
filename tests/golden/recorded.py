"""Read, compare and deliberately renew the values recorded in `golden.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("golden.json")
#: Set by `python -m tests.golden`: what is found is written instead of compared.
RENEW = "RENEW_GOLDEN"
SHOWN = 20


def recorded(part: str) -> Any:
    """A part of the file; empty where it has none yet."""
    return json.loads(PATH.read_bytes()).get(part, {}) if PATH.exists() else {}


def renewing() -> bool:
    """True while parts are renewed."""
    return RENEW in os.environ


def compare(part: str, found: Mapping[str, Any]) -> None:
    """Require what is recorded, entry by entry; while renewing, record what was found.

    Raises:
        AssertionError: names the entries that differ.
    """
    if renewing():
        return _write(part, found)
    before, now = dict(_flat(recorded(part))), dict(_flat(found))
    lines = [
        f"{name}: {before.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name)
    ]
    more = f"\n… and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    remedy = f"A refactoring changes none of this. After a change on purpose: python -m tests.golden {part}"
    assert not lines, "\n".join((f"golden {part}, recorded -> found:", *lines[:SHOWN])) + f"{more}\n{remedy}"
    return None


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists, by their place."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list | tuple) and value:
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{at}[{place}]")
    else:
        yield at, value


def _write(part: str, found: Mapping[str, Any]) -> None:
    parts = json.loads(PATH.read_bytes()) if PATH.exists() else {}
    parts[part] = found
    blocks = (f"{json.dumps(name)}: {_block(_lines(parts[name]))}" for name in sorted(parts))
    PATH.write_text(_block(blocks) + "\n")


def _block(lines: Iterable[str]) -> str:
    return "{\n" + ",\n".join(lines) + "\n}"


def _lines(entries: Mapping[str, Any]) -> Iterator[str]:
    """One line per entry, or per entry of an entry that has many."""
    for name, value in sorted(entries.items()):
        if isinstance(value, dict) and len(value) > SHOWN and all(isinstance(one, str) for one in value.values()):
            inner = (f"  {json.dumps(key)}: {json.dumps(value[key])}" for key in sorted(value))
            yield f" {json.dumps(name)}: {_block(inner)}"
        else:
            yield f" {json.dumps(name)}: {json.dumps(value, sort_keys=True)}"
