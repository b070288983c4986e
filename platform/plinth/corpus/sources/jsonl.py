"""JSON lines: one object per line, text in a field the recipe names; the other fields as `fields` says."""

from __future__ import annotations

import json
from collections.abc import Iterator

from plinth.corpus.sources.fields import Fields, kind_of
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.corpus.sources.streams import Fault, TextLine, lines, stretches, with_compression
from plinth.storage.files import SourceFile, opened


def read_jsonl(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """The objects of a file, or of a piece; blank lines are passed over."""
    fields = Fields(file, source, licence, max_bytes)
    with opened(file) as raw:
        for line in lines(stretches(raw, file.name), max_bytes, file.before):
            if isinstance(line, Fault):
                yield Reject(file.name, "file", line.reason, line.detail)
            elif line.data is None:
                detail = f"{line.bytes} bytes in one line, at most {max_bytes}"
                yield Reject(f"{file.name}#L{line.number}", f"line {line.number}", "too_large", detail, line.bytes)
            elif line.data.strip():
                yield _record(file, fields, line, line.data)


def _record(file: SourceFile, fields: Fields, line: TextLine, data: bytes) -> RawRecord | Reject:
    at, where = f"L{line.number}", f"line {line.number}"

    def refused(reason: str, detail: str) -> Reject:
        return Reject(f"{file.name}#{at}", where, reason, detail, line.bytes)

    try:
        found = json.loads(data.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        return refused("invalid_utf8", f"byte {error.start} of the line: {error.reason}")
    except (ValueError, RecursionError) as error:
        return refused("nul_bytes" if b"\0" in data else "broken_record", f"{error}")
    if not isinstance(found, dict):
        return refused("broken_record", f"{kind_of(found)}, expected an object")
    if fields.given_twice(data):
        return refused("broken_record", f"two fields `{fields.text_field}` in one object")
    return fields.record(found, at, where, line.bytes)


READER = Reader(
    name="jsonl",
    description="JSON lines: one record per line.",
    read=read_jsonl,
    suffixes=with_compression(".jsonl", ".ndjson", ".json"),
)
