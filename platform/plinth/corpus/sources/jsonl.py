"""JSON lines: one object per line, text in a field the recipe names.

Understood beside the text: `id`; `uri` or `url`; `licence` or `license`; `captured_at`, `date`, `timestamp` or
`created` (ISO 8601); `mime`. Other scalar fields travel in `extra`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from plinth.corpus.sources.inventory import record_licence
from plinth.corpus.sources.record import RawRecord, Reject
from plinth.corpus.sources.streams import Fault, Line, lines, stretches
from plinth.recipe.sources import Source
from plinth.storage.uris import SourceFile, opened

ADDRESS = ("uri", "url")
LICENCE = ("licence", "license")
DATE = ("captured_at", "date", "timestamp", "created")
EXTRA_FIELDS, EXTRA_CHARACTERS = 32, 500


def read_jsonl(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """The objects of a file; blank lines are passed over, an `id` seen before in the file is a reject."""
    seen: set[bytes] = set()
    with opened(file) as raw:
        for line in lines(stretches(raw, file.name), max_bytes):
            if isinstance(line, Fault):
                yield Reject(file.name, "file", line.reason, line.detail)
            elif line.data is None:
                detail = f"{line.bytes} bytes in one line, at most {max_bytes}"
                yield Reject(_at(file, line), f"line {line.number}", "too_large", detail, line.bytes)
            elif line.data.strip():
                yield _record(file, source, licence, line, line.data, seen)


def parse_time(value: object) -> datetime | None:
    """An ISO 8601 time in UTC (local times are taken as UTC), or None when it is not one."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _record(
    file: SourceFile, source: Source, licence: str, line: Line, data: bytes, seen: set[bytes]
) -> RawRecord | Reject:
    where = f"line {line.number}"

    def refused(reason: str, detail: str) -> Reject:
        return Reject(_at(file, line), where, reason, detail, line.bytes)

    try:
        found = json.loads(data.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        return refused("invalid_utf8", f"byte {error.start} of the line: {error.reason}")
    except (ValueError, RecursionError) as error:
        return refused("nul_bytes" if b"\0" in data else "broken_record", f"{error}")
    if not isinstance(found, dict):
        return refused("broken_record", f"a JSON {type(found).__name__}, expected an object")
    text = found.get(source.text_field)
    if not isinstance(text, str):
        return refused("missing_field", f"no text in field {source.text_field!r}; it has {', '.join(found)}")
    key = found.get("id")
    if key is not None:
        mark = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).digest()[:16]
        if mark in seen:
            return refused("duplicate_id", f"id {key!r} was used by an earlier line of this file")
        seen.add(mark)
    return RawRecord(
        uri=_first_string(found, ADDRESS) or (_at(file, line) if key is None else f"{file.name}#{key}"),
        content=text,
        mime=_first_string(found, ("mime",)) or "text/plain",
        licence=record_licence(licence, _first_string(found, LICENCE)),
        source_bytes=line.bytes,
        where=where,
        captured_at=parse_time(_first_string(found, DATE)),
        extra=_extra(found, {source.text_field, "mime", *ADDRESS, *LICENCE}),
    )


def _extra(found: Mapping[str, Any], used: set[str]) -> dict[str, Any]:
    """Scalars of moderate size, by name; long strings are shortened."""
    extra: dict[str, Any] = {}
    for key, value in sorted(found.items()):
        if key in used or len(extra) == EXTRA_FIELDS or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if isinstance(value, bool | int | float | str):
            extra[key[:EXTRA_CHARACTERS]] = value[:EXTRA_CHARACTERS] if isinstance(value, str) else value
    return extra


def _first_string(found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = found.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _at(file: SourceFile, line: Line) -> str:
    return f"{file.name}#L{line.number}"
