"""Normal form of text: line ends, mojibake, invisible and control characters, NFC, trailing spaces, blank lines. For
sources that request it, wrong line and page boundaries are repaired.

Normalization is idempotent. Wording and indentation are unchanged, and no letter is lost. Control characters that only
reorder the displayed text ("Trojan Source", CVE-2021-42574) and invisible tag characters that hide ASCII are removed.
Therefore a text contains only what a reader sees.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa

from plinth.corpus.sources.parameters import Normalisation
from plinth.corpus.sources.record import Reject
from plinth.storage.atomic import named_failures
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA
from plinth.storage.store import Store

#: Vertical tab, form feed; and beyond ASCII: next line, line and paragraph separator.
_ASCII_LINE_ENDS = ("\r\n", "\r", "\x0b", "\x0c")
_OTHER_LINE_ENDS = ("\x85", "\u2028", "\u2029")
#: C0 controls but tab and newline, delete; and beyond ASCII: C1, the byte order mark, noncharacters.
_ASCII_CONTROLS = bytes([*range(9), *range(11, 32), 127])
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufdd0-\ufdef\ufffe\uffff]")
#: A soft hyphen at a line end: the word continues.
_SOFT_BREAK = re.compile("(?<=[^\\W\\d_])\xad[ \t]*\n[ \t]*(?=[^\\W\\d_])")
#: Soft hyphen, word joiner; zero-width space but in scripts that write no spaces (Thai, Lao, Tibetan, Myanmar, Khmer),
#: where it parts words; joiners between Latin letters, where they join nothing.
_INVISIBLES = "\xad\u2060\u200b\u200c\u200d"
_INVISIBLE = re.compile(
    "[\xad\u2060]"
    "|(?<![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff])\u200b(?![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff])"
    "|(?<=[A-Za-z\u00c0-\u024f])[\u200c\u200d]+(?=[A-Za-z\u00c0-\u024f])"
)
#: Embeddings, overrides, isolates and their ends (UAX #9). The marks U+200E, U+200F and U+061C, with which Arabic and
#: Hebrew are written, stay: they move no letter past another.
_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_REORDERINGS = re.compile(f"[{_REORDERING}]")
#: Tags, but in the flag of a subdivision: a black flag, its code of three to six, and the end (UTS #51, ED-14A).
_TAG = re.compile("[\U000e0000-\U000e007f]")
_TAGS = re.compile("(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)|[\U000e0000-\U000e007f]+")
#: Without one of these, ftfy finds no damage: neighbors beyond ASCII, a C1 control, Â, Ã, Œ or œ; and the characters
#: around them that decide.
_SUSPECT, _AROUND = re.compile("[^\x00-\x7f]{2,}|[\x80-\x9f\xc2\xc3\u0152\u0153]"), 6
_MAX_ROUNDS = 8


def normalize(text: str, params: Normalisation, repair_boundaries: bool = False) -> str:
    """Return the normal form of a text. The function is pure and idempotent.

    Mojibake is repaired line by line, and only if ftfy's detector finds damage in the line. Text without damage is not
    changed, including its quotes, ligatures and entities.
    """
    for _ in range(_MAX_ROUNDS):
        settled = _once(text, params, repair_boundaries)
        # Repairing one layer can uncover another; plain ASCII settles at once.
        if settled == text or (settled.isascii() and not repair_boundaries):
            return settled
        text = settled
    return text


def _once(text: str, params: Normalisation, repair_boundaries: bool) -> str:
    # Most text needs none of this: every step is first a fast search that finds nothing.
    for end in _ASCII_LINE_ENDS:
        if end == "\x0c" and repair_boundaries:
            text = fix_boundaries(text)
        text = text.replace(end, "\n")
    if text.isascii():
        lines = text.encode().translate(None, _ASCII_CONTROLS).decode().split("\n")
    else:
        lines = _beyond_ascii(text, params)
    text = "\n".join(map(str.rstrip, lines))
    limit = params.max_blank_lines + 1
    if "\n" * (limit + 1) in text:
        text = re.sub(rf"\n{{{limit + 1},}}", "\n" * limit, text)
    return text.strip("\n")


def _beyond_ascii(text: str, params: Normalisation) -> list[str]:
    if params.repair_mojibake:
        # Before C1 controls go: half of mojibake consists of them.
        text = "\n".join(_repaired(text.split("\n")))
    for end in _OTHER_LINE_ENDS:
        text = text.replace(end, "\n")
    text = _CONTROLS.sub("", text)
    if params.strip_invisible:
        text = _without_invisible(text)
    return unicodedata.normalize("NFC", text).split("\n")


def _without_invisible(text: str) -> str:
    if any(mark in text for mark in _REORDERING):
        text = _REORDERINGS.sub("", text)
    # Only strings with a character beyond U+FFFF take four bytes each: no other has to be searched.
    if sys.getsizeof(text) >= 4 * len(text) and _TAG.search(text):
        text = _TAGS.sub(r"\1", text)
    if any(mark in text for mark in _INVISIBLES):
        text = _INVISIBLE.sub("", _SOFT_BREAK.sub("", text))
    return text


def _repaired(lines: list[str]) -> list[str]:
    from ftfy import fix_encoding

    suspects = [line for line in lines if not line.isascii()]
    if not is_damaged("\n".join(suspects)):
        return lines
    return [fix_encoding(line) if not line.isascii() and is_damaged(line) else line for line in lines]


def is_damaged(text: str) -> bool:
    """Return True if ftfy finds mojibake. Its pattern has forty alternatives, so it is tried near suspects only."""
    from ftfy.badness import BADNESS_RE

    return any(
        BADNESS_RE.search(text, max(0, found.start() - _AROUND), found.end() + _AROUND)
        for found in _SUSPECT.finditer(text)
    )


# Repair of boundaries at line ends and page ends, where the text itself shows the correct form.
#
# For text from PDFs, scans and e-books. Every rule prefers keeping an error to introducing one:
#
#     page ends     a form feed inside a sentence (no closing mark before it, a small letter after it) is a space;
#                   a line with only a number next to the form feed is a page number, and is removed
#     hyphens       `exam-` / `ple` at a line's end becomes `example` only where the text has `example` elsewhere, and
#                   `well-known` only where it has `well-known`; otherwise it stays
#     sentences     `ended.The next` gets its space when a small-lettered word is before the mark and one of the words
#                   that begin sentences after it
#
# Lines that look like code, and words with anything but letters around the mark (addresses, numbers, file names,
# abbreviations) are left alone. No letter is ever lost.

_HYPHEN = re.compile(r"(?<![\w-])([^\W\d_]{2,})-\n([^\W\d_]{2,})(?![\w-])")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
#: Function words that begin English sentences and hardly ever name a module, a class or a domain.
_OPENERS = (
    "The|This|That|These|Those|There|It|Its|He|She|We|They|You|His|Her|Their|Our|My|However|Therefore|Although|Because|"
    "When|While|After|Before|During|Since|Then|Thus|Also|Even|Many|Most|Some|Such|What|Why|How|Where|But|And|In|On|At|By"
)
_GLUED = re.compile(rf"(?<![\w.:/@\\`'\x22(-])([^\W\d_A-Z]{{3,}}[.!?])((?:{_OPENERS})) (?=[^\W\d_A-Z])")
#: Characters of code that prose hardly uses.
_CODE = re.compile(r"[{}<>;=`\\|_]|\(\)|::|->|^\s*(?:#|//|>>>|\$ )|^(?: {4}|\t)")
_CLOSING = '.!?:;"”»)]…。！？'


def fix_boundaries(text: str) -> str:
    r"""Fix wrong line and page boundaries of a text in linear time. Line ends must be `\n`; page ends are `\f`."""
    if "\f" in text:
        text = _fix_pages(text.split("\f"))
    if "-\n" in text:
        text = _fix_hyphens(text)
    if _GLUED.search(text):
        text = "\n".join(line if _CODE.search(line) else _GLUED.sub(r"\1 \2 ", line) for line in text.split("\n"))
    return text


def _fix_pages(pages: list[str]) -> str:
    """Join pages, and remove the blank lines and page numbers between them."""
    pieces: list[str] = []
    last_line = ""
    for index, page in enumerate(pages):
        lines = page.split("\n")
        if index > 0:
            lines = _trimmed(lines)
        if index < len(pages) - 1:
            lines = _trimmed(lines[::-1])[::-1]
        if not lines:
            continue
        if pieces:
            pieces.append(_joint(last_line, lines[0]))
        pieces.append("\n".join(lines))
        # A page of one line goes on with the line before it; only its end matters for the next joint.
        last_line = lines[-1]
    return "".join(pieces)


def _trimmed(lines: list[str]) -> list[str]:
    """Return the lines of a page without the blank lines at its beginning. If a page number is among them, it is
    removed as well."""
    start, numbers = 0, 0
    while start < len(lines):
        word = lines[start].strip().strip("-").strip()
        numbers += bool(word)
        if word and (numbers > 1 or len(word) > 4 or not (word.isascii() and word.isdigit())):
            break
        start += 1
    return lines[start:]


def _joint(before: str, after: str) -> str:
    """Return the separator of two lines: a space inside a sentence, a line end next to code or after a hyphen, or else
    a blank line."""
    before = before.rstrip()
    if _CODE.search(before) or _CODE.search(after):
        return "\n"
    if not after[:1].islower() or not before or before[-1] in _CLOSING:
        return "\n\n"
    return "\n" if before[-1] == "-" else " "


def _fix_hyphens(text: str) -> str:
    words = {word.casefold() for word in _WORD.findall(text)}

    def joined(match: re.Match[str]) -> str:
        first, second = match.groups()
        line_start = text.rfind("\n", 0, match.start()) + 1
        if _CODE.search(text[line_start : match.start()] + first) or not second[0].islower():
            return match.group()
        if (first + second).casefold() in words:
            return f"{first}{second}"
        return f"{first}-{second}" if f"{first}-{second}".casefold() in words else match.group()

    return _HYPHEN.sub(joined, text)


# Rows of documents: to record batches, in bounded memory, with the counts that manifests carry.

BATCH_ROWS = 1024
BATCH_BYTES = 16 * 2**20


def document_batches(rows: Iterable[tuple[Any, ...]], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows of documents as batches of DOCUMENT_SCHEMA. `counts` receives the numbers of documents, text bytes and
    source bytes."""
    held: list[tuple[Any, ...]] = []
    size = 0
    counts.update(documents=0, text_bytes=0, source_bytes=0)
    for row in rows:
        held.append(row)
        size += len(row[1])
        counts["source_bytes"] += row[7]
        if len(held) == BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(held, DOCUMENT_SCHEMA, counts)
            held, size = [], 0
    if held:
        yield _batch(held, DOCUMENT_SCHEMA, counts)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema, counts: Counter[str]) -> pa.RecordBatch:
    columns = [pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    text = columns[1]
    counts["documents"] += len(rows)
    counts["text_bytes"] += _data_bytes(text)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _data_bytes(text: pa.LargeStringArray) -> int:
    """Return the number of UTF-8 bytes of a newly created string column."""
    return int(text.buffers()[2].size) if text.buffers()[2] else 0


class RejectSpill:
    """Rejects that are waiting to be written to a part. The rejects are kept on disk, because a hostile file may cause
    more rejects than fit into memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stack = ExitStack()
        self._held: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._bytes = 0

    def __enter__(self) -> RejectSpill:
        self._path = self._stack.enter_context(self._store.staging(".arrow"))
        self._stack.enter_context(named_failures(self._path))
        self._sink = self._stack.enter_context(pa.OSFile(str(self._path), "wb"))
        self._writer = pa.ipc.new_stream(self._sink, REJECT_SCHEMA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    def add(self, reject: Reject) -> None:
        """Store one reject."""
        self._counts[reject.reason] += 1
        self._bytes += reject.source_bytes
        self._held.append(reject)
        if len(self._held) == BATCH_ROWS:
            self._flush()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all stored rejects in order. After this call, no rejects can be added."""
        self._flush()
        self._writer.close()
        self._sink.close()
        with pa.OSFile(str(self._path), "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def stats(self) -> dict[str, Any]:
        """Return the number of rejects by reason, and the number of source bytes of all rejects."""
        return {"rejects": dict(sorted(self._counts.items())), "rejected_bytes": self._bytes}

    def _flush(self) -> None:
        if self._held:
            self._writer.write_batch(reject_batch(self._held))
            self._held = []


def reject_batch(rejects: Iterable[Reject]) -> pa.RecordBatch:
    """Return rejects as a batch of REJECT_SCHEMA."""
    rows = [
        {
            "uri": reject.uri.encode("utf-8", "backslashreplace").decode(),
            "where": reject.where,
            "reason": reject.reason,
            "detail": reject.brief,
            "source_bytes": reject.source_bytes,
        }
        for reject in rejects
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)
