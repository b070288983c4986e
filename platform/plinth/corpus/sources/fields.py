"""Records built from named fields: an object of JSON lines, or a row of Parquet.

In addition to the text, these fields are read: `id`; `uri` or `url`; `licence` or `license`; `captured_at`, `date`,
`timestamp` or `created` (parsed by `times`); `mime`. The recipe may name other fields; `meta.url` reads `url` inside
`meta`. The fields of `metadata` (an object, or JSON text) count as fields of the record, unless the record has a field
of the same name. datatrove, Dolma and Plinth's exports write `metadata`. Files of Dolma attributes have no text, so
their lines become exclusions. A record without an address is named by its file and `id`, or by its line or row. If
several texts of a file have the same `id`, all are kept, and `repeated_id` marks the first repeat.

All other fields, even nested ones, are copied to `extra`. Fields that are too many, too large or not JSON are listed
under `left_out` in `extra`. From `media`, only hashes are copied: `[{"sha256": …, "phash": …}]`. Illegal images are
recognized by these hashes; the images themselves are never read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any

from plinth.corpus.sources.inventory import record_licence
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import ATTRIBUTES, RawRecord, Reject
from plinth.corpus.sources.times import read_time
from plinth.storage.files import SourceFile

ADDRESS = ("uri", "url")
LICENCE = ("licence", "license")
DATE = ("captured_at", "date", "timestamp", "created")
EXTRA_FIELDS, EXTRA_CHARACTERS, NESTED_CHARACTERS = 64, 500, 2000
#: Start of the detail where a record lacks its text; the field may have another name.
NO_FIELD = "no field"
KINDS = (
    (NoneType, "null"), (bool, "a boolean"), (int | float | Decimal, "a number"), (str, "a string"),
    (date, "a date"), (list, "a list"), (Mapping, "an object"),
)  # fmt: skip
MEDIA, LEFT_OUT, METADATA = "media", "left_out", "metadata"
#: Hexadecimal digits of each hash of a media item.
MEDIA_DIGITS = {"sha256": 64, "phash": 16}


class Fields:
    """Builder of records from the named fields of one file. The builder remembers each `id` that it has seen.

    Args:
        file, source: file and source of the records.
        licence: license of the file, or `per-document`.
        max_bytes: maximum length of a text; a longer text becomes a reject.
        unread: names of other fields in the file, which are not read.
    """

    def __init__(
        self, file: SourceFile, source: Source, licence: str, max_bytes: int, unread: Iterable[str] = ()
    ) -> None:
        self._unread = tuple(unread)
        self._file, self._licence, self._max_bytes = file, licence, max_bytes
        self.text_field = source.text_field
        self._address = (source.uri_field,) if source.uri_field else ADDRESS
        self._date = (source.date_field,) if source.date_field else DATE
        self._own_licence = (source.licence_field,) if source.licence_field else LICENCE
        self._used = {self.text_field, "mime", *self._address, *self._own_licence}
        self._first_text: dict[bytes, bytes] = {}  # by id
        self._repeated: set[bytes] = set()

    def given_twice(self, data: bytes) -> bool:
        """Return True if a JSON object contains the text field twice. A parser would keep only the second text."""
        outer = self.text_field.partition(".")[0]
        if data.count(json.dumps(outer).encode()) < 2:
            return False
        pairs = json.loads(data.removeprefix(BOM_UTF8), object_pairs_hook=list)
        return sum(name in (outer, self.text_field) for name, _ in pairs) > 1

    def record(self, found: Mapping[str, Any], at: str, where: str, size: int) -> RawRecord | Reject:
        """Build a record from named fields.

        Args:
            found: fields by name.
            at: position `L12` or `R12`, used as the name of a record without address or id.
            where: the same position, for messages.
            size: number of bytes of the record in its file.
        """

        def refused(reason: str, detail: str) -> Reject:
            return Reject(f"{self._file.name}#{at}", where, reason, detail, size)

        given, found = found, _unpacked(found)
        text = look_up(found, self.text_field)
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                return refused("invalid_utf8", f"byte {error.start} of field {self.text_field!r}: {error.reason}")
        if text is None and has_field(found, self.text_field):
            return refused("empty", f"field {self.text_field!r} is null")
        if text is None and isinstance(found.get(ATTRIBUTES), Mapping):
            return refused(ATTRIBUTES, "scores about a document of another file")
        if text is None:
            has = ", ".join(f"`{name}`" for name in given)
            return refused("missing_field", f"{NO_FIELD} `{self.text_field}` (has {has or 'none'})")
        if not isinstance(text, str):
            return refused("missing_field", f"field `{self.text_field}` is {kind_of(text)}, expected text")
        if len(text) > self._max_bytes:
            return refused("too_large", f"{len(text)} characters, at most {self._max_bytes} bytes")
        try:
            hashes = _media(found.get(MEDIA))
        except ValueError as error:
            return refused("broken_record", f"{error}")
        uri, repeated = _first_string(found, self._address), False
        if not uri:
            name, repeated = self._name(found.get("id"), text, at)
            uri = f"{self._file.name}#{name}"
        captured, unread = self._captured_at(found)
        return RawRecord(
            uri=uri,
            content=text,
            mime=_first_string(found, ("mime",)) or "text/plain",
            licence=record_licence(self._licence, _first_string(found, self._own_licence)),
            source_bytes=size,
            where=where,
            captured_at=captured,
            unread_date=unread,
            extra=self._extra(found) | ({MEDIA: hashes} if hashes else {}),
            repeated_id=repeated,
        )

    def _name(self, key: Any, text: str, at: str) -> tuple[str, bool]:
        """Return the name of a record in its file, and True if this is the first time that its `id` has a second text.

        The first text with an `id` is named by the `id`. Other texts are named by the `id` and the text's digest, so
        that equal texts count as repeats.
        """
        name = "" if key is None else str(key).strip()
        if not name:
            return at, False
        mark, own = _digest(name), _digest(text)
        if self._first_text.setdefault(mark, own) == own:
            return name, False
        new = mark not in self._repeated
        self._repeated.add(mark)
        return f"{name}~{own.hex()}", new

    def _captured_at(self, found: Mapping[str, Any]) -> tuple[datetime | None, bool]:
        """Return the time that a record states, and True if it states a time that cannot be read."""
        for name in self._date:
            value = look_up(found, name)
            if value is not None and value != "":
                time = read_time(value)
                return time, time is None
        return None, False

    def _extra(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are copied to `extra`, by name. Long strings are shortened, and very large values are
        left out."""
        extra: dict[str, Any] = {}
        left_out = list(self._unread)
        outer, _, inner = self.text_field.partition(".")
        for key, value in sorted(found.items()):
            if key in self._used or value is None or (key == MEDIA and isinstance(value, list)):
                continue
            if (key == METADATA and isinstance(value, Mapping)) or (outer, inner) == (METADATA, key):
                continue
            if key == outer and inner and isinstance(value, Mapping):  # the text is not metadata of itself
                value = {name: one for name, one in value.items() if name != inner.partition(".")[0]}
            kept = _kept(value)
            if kept is None or len(extra) == EXTRA_FIELDS:
                left_out.append(key)
            else:
                extra[key[:EXTRA_CHARACTERS]] = kept
        if left_out:
            extra[LEFT_OUT] = [name[:EXTRA_CHARACTERS] for name in sorted(left_out)[:EXTRA_FIELDS]]
        return extra


def _unpacked(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge the fields of a record's `metadata` into the record."""
    inside = found.get(METADATA)
    if isinstance(inside, str):
        try:
            inside = json.loads(inside)
        except (ValueError, RecursionError):
            return found
    return {**inside, **found, METADATA: inside} if isinstance(inside, Mapping) else found


def _kept(value: Any) -> Any:
    """Return a field's value as metadata, or None if it cannot be stored. Times and nested values become JSON."""
    if isinstance(value, bool | int | str):
        return value[:EXTRA_CHARACTERS] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        written = json.dumps(value, allow_nan=False, default=_as_text)
    except (TypeError, ValueError, RecursionError):
        return None
    return json.loads(written) if len(written) <= NESTED_CHARACTERS else None


def _as_text(value: Any) -> str:
    """Format a time or a decimal number from Parquet as text.

    Raises:
        TypeError: the value has a different type, such as bytes.
    """
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not metadata")


def look_up(found: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name, or by a dotted path into nested fields."""
    if name in found or "." not in name:
        return found.get(name)
    outer, _, inner = name.partition(".")
    inside = found.get(outer)
    return look_up(inside, inner) if isinstance(inside, Mapping) else None


def has_field(found: Mapping[str, Any], name: str) -> bool:
    """Return True if the record has the field that `look_up` would return, even if the field is null."""
    if name in found or "." not in name:
        return name in found
    outer, _, inner = name.partition(".")
    inside = found.get(outer)
    return has_field(inside, inner) if isinstance(inside, Mapping) else False


def kind_of(value: Any) -> str:
    """Return the type of a value in words, for messages."""
    return next((words for kind, words in KINDS if isinstance(value, kind)), f"a {type(value).__name__}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _first_string(found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = look_up(found, name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _media(value: Any) -> list[dict[str, str]]:
    """Return the hashes that a field declares, in lower case. Entries without hashes are left out.

    Raises:
        ValueError: a hash is malformed, so that no list could match it; the error names the hash.
    """
    found = []
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(item, dict):
            continue
        hashes = {}
        for name, digits in MEDIA_DIGITS.items():
            given = item.get(name)
            if given is None:
                continue
            if not isinstance(given, str) or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", given):
                raise ValueError(f"media[{number}].{name} is not {digits} hexadecimal digits")
            hashes[name] = given.lower()
        if hashes:
            found.append(hashes)
    return found
