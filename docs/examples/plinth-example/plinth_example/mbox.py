"""Mail archives in mbox format (RFC 4155): one record per message, its plain text; gzipped or not.

A message begins with a line `From …` at the start of the file or after a blank line. At most one message is held.
What cannot be read is a reject with a reason and the line where the message begins; the messages around it are kept.
"""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import parsedate_to_datetime

from pydantic import Field

from plinth.corpus.sources.inventory import record_licence
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.corpus.sources.streams import Fault, lines, stretches
from plinth.records import Frozen
from plinth.storage.files import SourceFile, opened

BEGINS = b"From "


class Options(Frozen):
    """`options` of a source of this kind."""

    subject: bool = Field(False, description="Put the subject above the text.")


def read(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Yield the messages of an archive in order; a message over `max_bytes` is a reject."""
    options = Options.model_validate(source.options)
    with opened(file) as raw:
        for message in _messages(raw, file.name, max_bytes, file.before):
            yield message if isinstance(message, Reject) else _record(file, message, options, licence)


class _Message:
    """The bytes of a message, and where it begins."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number, self.size, self.lines = name, number, 0, list[bytes]()

    def refused(self, reason: str, detail: str) -> Reject:
        return Reject(f"{self.name}#L{self.number}", f"line {self.number}", reason, detail, self.size)


def _messages(raw: object, name: str, max_bytes: int, before: int) -> Iterator[_Message | Reject]:
    held: _Message | None = None
    blank = True
    for line in lines(stretches(raw, name), max_bytes, before):  # type: ignore[arg-type]
        if isinstance(line, Fault):
            if held is not None:
                yield held.refused(line.reason, f"cut short: {line.detail}")
                held = None
            yield Reject(name, "file", line.reason, line.detail)
            continue
        data = (line.data or b"").removesuffix(b"\r")
        if blank and data.startswith(BEGINS):
            if held is not None:
                yield _whole(held, max_bytes)
            held = _Message(name, line.number)
        elif held is not None:
            held.size += line.bytes + 1
            if held.size <= max_bytes:
                held.lines.append(data)
        elif data:
            yield Reject(f"{name}#L{line.number}", f"line {line.number}", "broken_record", "text before a `From ` line")
            held = _Message(name, line.number)
            held.size = max_bytes + 1  # passed over up to the next message
        blank = not data and line.data is not None
    if held is not None:
        yield _whole(held, max_bytes)


def _whole(message: _Message, max_bytes: int) -> _Message | Reject:
    if message.size > max_bytes:
        return message.refused("too_large", f"{message.size} bytes, at most {max_bytes}")
    return message


def _record(file: SourceFile, held: _Message, options: Options, licence: str) -> RawRecord | Reject:
    try:
        parsed = email.message_from_bytes(b"\n".join(held.lines), policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        body = parsed.get_body(("plain",))
        text = str(body.get_content()).rstrip("\n") if body is not None else None
        subject, identifier = str(parsed.get("subject", "")).strip(), str(parsed.get("message-id", "")).strip(" <>")
        captured = _date(str(parsed.get("date", "")))
    except Exception as error:  # the parser of the standard library raises many kinds at hostile input
        return held.refused("broken_record", f"{type(error).__name__}: {error}")
    if text is None:
        return held.refused("missing_field", "no part of type text/plain")
    return RawRecord(
        uri=f"mid:{identifier}" if identifier else f"{file.name}#L{held.number}",
        content=f"{subject}\n\n{text}" if options.subject and subject else text,
        mime="text/plain",
        licence=record_licence(licence, None),
        source_bytes=held.size,
        where=f"line {held.number}",
        captured_at=captured,
        extra={"subject": subject[:500]} if subject else {},
    )


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


READER = Reader(
    name="mbox",
    description="Mail archives: one record per message.",
    read=read,
    suffixes=(".mbox", ".mbox.gz"),
    params=Options,
)
