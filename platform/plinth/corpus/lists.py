"""Lists that the user supplies: blocked domains, words, hashes, lexicons.

This module defines the format of list files, memory-mapped tables for large lists, the asset that stores a list, and
lexicons.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.errors import IntegrityError, PlinthError, SourceError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.atomic import named_failures
from plinth.storage.files import CHUNK_BYTES, SourceFile, opened
from plinth_text.arrays import F32, F64, I64, U64
from plinth_text.scoring import COMMON_WORDS
from plinth_text.terms import MAX_WORDS, TermHits, TermTable

# Entries of a large list, sorted by hash, in a file that every process maps: no copy and no reading per worker.
#
#     hash     uint64, ascending: BLAKE2b of the entry, 8 bytes, little-endian
#     entry    the text; equal hashes are decided by it, so a look-up is exact
#     value    value of the entry in the list
#
# The first of duplicate entries applies.

#: Entries that are Python objects at the same time while a table is made.
AT_ONCE = 200_000


@dataclass(frozen=True)
class ListTable:
    """Table of a list, for looking up many names at once. Processes memory-map the table.

    Args:
        table: columns hash, entry and value.
        left_out: number of malformed lines in the list's files.
    """

    table: pa.Table
    left_out: int = 0

    @classmethod
    def of(cls, entries: Iterable[tuple[str, Any]], value: pa.DataType) -> ListTable:
        """Build the table from pairs of an entry and its value. `value` is the Arrow type of the values."""
        found = iter(entries)
        hashes, names, values = [np.empty(0, np.uint64)], [pa.array([], pa.large_string())], [pa.array([], value)]
        while some := list(islice(found, AT_ONCE)):
            hashes.append(_hashes([name for name, _ in some]))
            names.append(pa.array([name for name, _ in some], pa.large_string()))
            values.append(pa.array([one for _, one in some], value))
        keys = np.concatenate(hashes)
        order = np.argsort(keys, kind="stable")
        columns = {"hash": pa.array(keys[order])}
        columns["entry"] = pa.chunked_array(names).combine_chunks().take(pa.array(order))
        columns["value"] = pa.chunked_array(values).combine_chunks().take(pa.array(order))
        return cls(pa.table(columns))

    @classmethod
    def map(cls, path: Path) -> ListTable:
        """Memory-map a table from the file that `storage.parts.write_arrow` wrote.

        Raises:
            IntegrityError: the file is not a table.
        """
        try:
            with pa.ipc.open_file(pa.memory_map(str(path))) as file:
                return cls(file.read_all())
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(f"{path} is not a list table", found=error, expected="an Arrow file") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def values(self, names: Sequence[str]) -> list[Any]:
        """Return the value of each name in the list, or None if the list does not contain the name."""
        if not names or not len(self):
            return [None] * len(names)
        column = self.table.column("hash")
        keys = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
        wanted = _hashes(names)
        at = np.searchsorted(keys, wanted)
        found: list[Any] = [None] * len(names)
        for row in np.flatnonzero(keys[np.minimum(at, keys.size - 1)] == wanted).tolist():
            place = int(at[row])
            while place < keys.size and keys[place] == wanted[row]:
                if self.table.column("entry")[place].as_py() == names[row]:
                    found[row] = self.table.column("value")[place].as_py()
                    break
                place += 1
        return found


def _hashes(names: Sequence[str]) -> U64:
    raw = b"".join(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names)
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)


# Files of lists: one entry per line, `#` starts a comment line, UTF-8, plain or gzip.
#
# Lists decide which text is dropped, so bytes that are not UTF-8 are an error with file and line. Published lists have
# some malformed lines among millions, so these are counted, and fail if they exceed `MAX_BAD_SHARE` of a file.

E = TypeVar("E")

#: Maximum length of an entry; longer ones mean that line ends are missing.
MAX_CHARACTERS = 4096
#: Maximum share of malformed lines. UT1 as datatrove ships it has 691 among 4,558,940 domains (0.015%); a
#: list of some hundred lines, written by hand, may have none.
MAX_BAD_SHARE = 0.001
#: Bound on the size of a list, uncompressed.
MAX_BYTES = 2**31


def numbered_lines(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the stripped lines of a list file, with line numbers from 1. Empty lines and comments are skipped.

    Raises:
        SourceError: the file is not UTF-8, is a damaged gzip file, or has a line that is too long.
    """
    read = 0
    try:
        with gzip.open(path, "rb") if name.endswith(".gz") else path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                read += len(raw)
                if read > MAX_BYTES:
                    raise refused(name, number, f"more than {MAX_BYTES} bytes", "a list that fits into memory")
                line = raw.decode("utf-8").strip()
                if len(line) > MAX_CHARACTERS:
                    raise refused(name, number, f"{len(line)} characters", f"at most {MAX_CHARACTERS} on a line")
                if line and not line.startswith("#"):
                    yield number, line
    except UnicodeDecodeError as error:
        raise refused(name, 0, f"bytes that are not UTF-8 ({error.reason})", "text in UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise refused(name, 0, f"{type(error).__name__}: {error}", "a readable file") from error


class Counts(Frozen):
    """Counts of a list file: entries and skipped malformed lines, with the first skipped line."""

    entries: int = 0
    bad: int = 0
    first_bad: str = ""


def parsed(name: str, path: Path, parse: Callable[[str], E], counted: dict[str, Counts] | None = None) -> Iterator[E]:
    """Yield the parsed entries of a list file. Lines for which `parse` raises ValueError are skipped.

    Args:
        counted: receives the counts of the file, by file name, after the whole file has been read.

    Raises:
        SourceError: more than `MAX_BAD_SHARE` of the lines are malformed; the error names the first such line.
    """
    good, bad = 0, list[tuple[int, str, str]]()
    for number, line in numbered_lines(name, path):
        try:
            yield parse(line)
            good += 1
        except ValueError as error:
            bad.append((number, line[:80], str(error)))
    if len(bad) > MAX_BAD_SHARE * (good + len(bad)):
        number, line, expected = bad[0]
        others = f", and {len(bad) - 1} more of {good + len(bad)} lines" if len(bad) > 1 else ""
        raise refused(name, number, f"{line!r}{others}", expected)
    if counted is not None:
        first = f"line {bad[0][0]}: {bad[0][1]!r}" if bad else ""
        counted[name] = Counts(entries=good, bad=len(bad), first_bad=first)


def by_role(files: Mapping[str, Path], roles: tuple[str, ...]) -> dict[str, list[tuple[str, Path]]]:
    """Return the files of a list by role. A file's name begins with its role, such as `domains` in
    `domains-ads.txt.gz`.

    Raises:
        SourceError: a file has no role, so it would have no effect.
    """
    found: dict[str, list[tuple[str, Path]]] = {role: [] for role in roles}
    for name, path in sorted(files.items()):
        stem = name.rsplit("/", 1)[-1]
        role = next((role for role in sorted(roles, key=len, reverse=True) if stem.startswith(role)), None)
        if role is None:
            raise refused(name, 0, stem, f"a name that starts with {', '.join(roles)}")
        found[role].append((name, path))
    return found


def refused(name: str, line: int, found: str, expected: str) -> SourceError:
    """Return the error for one line of a list."""
    where = f"{name}, line {line}" if line else name
    return SourceError(
        f"list {where} cannot be used", found=found, expected=expected, remedy="fix the file; no document was annotated"
    )


# Lists of the user (blocked domains, words, hashes): their files as parts, by content.
#
# Annotators read them as resources. A list that changed is another input, so dependent steps run again.

VERSION = "1"
#: Bound on the files of a list, which every machine copies. Lists that are looked up have bounds of their own; a ready
#: model is as large as its authors made it.
LISTS_MAX_BYTES = 64 * 2**30


def digest(ctx: Context, location: str) -> str:
    """Return one digest of the names and contents of the files at a location."""
    return fingerprint.digest([[file.name, file.sha256] for file in _files(ctx, location)])


def entries(ctx: Context, location: str) -> list[str]:
    """Return the lines of the files at a location. Empty lines are left out.

    Raises:
        SourceError: there are no files, a file cannot be read or is not UTF-8, or the list is larger than `MAX_BYTES`.
    """
    files = _files(ctx, location)
    if (total := sum(file.bytes for file in files)) > LISTS_MAX_BYTES:
        raise SourceError(f"{location} is too large", found=f"{total} bytes", expected=f"at most {LISTS_MAX_BYTES}")
    found: list[str] = []
    for file in files:
        with opened(file) as stream:
            try:
                found += (line.strip() for line in stream.read().decode().splitlines())
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{file.name} is not text", found=error, expected="UTF-8, one entry per line"
                ) from error
    return [line for line in found if line]


def run(ctx: Context, name: str, location: str) -> Manifest:
    """Copy the files of a list into the store.

    Returns:
        Manifest of one part per file, under the file's name. Statistics: `files`, `bytes`.

    Raises:
        SourceError: the location has no files, a file cannot be read, or the list is larger than `MAX_BYTES`.
    """
    files = _files(ctx, location)
    total = sum(file.bytes for file in files)
    if total > LISTS_MAX_BYTES:
        raise SourceError(f"list {name} is too large", found=f"{total} bytes", expected=f"at most {LISTS_MAX_BYTES}")
    parts = []
    for file in files:
        with ctx.store.staging() as staged:
            with opened(file) as stream, named_failures(staged), staged.open("wb") as copy:
                for data in iter(lambda: stream.read(CHUNK_BYTES), b""):
                    copy.write(data)
            parts.append(Part(name=file.name.strip("/") or "list", blob=ctx.store.put_file(staged)))
    inputs = {f"file:{file.name.strip('/') or 'list'}": file.sha256 for file in files}
    step = Step(name="lists", version=VERSION)
    return manifest(f"lists/{name}", step, inputs, parts, {"files": len(files), "bytes": total})


def _files(ctx: Context, location: str) -> list[SourceFile]:
    return listing.inventory(location, ctx.workspace.input)


# A lexicon: terms with weights and categories, as a list of the user (`corpus.lists`).
#
# One term per line, three fields separated by tabs; empty lines and lines that begin with `#` are ignored:
#
#     term or phrase <TAB> weight <TAB> category
#
# Weights are above 0 and at most 1. The file can stop documents, so a damaged or too broad file is an error: control
# characters, duplicate terms with different values, common English words, terms without letters.

#: Bounds of a file.
MAX_TERMS, LEXICON_MAX_CHARACTERS = 1_000_000, 120
CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,39}")
EXPECTED = "term <TAB> weight above 0, at most 1 <TAB> category of small letters, digits and _"

#: Names of the features of hits for the second stage of a classifier.
FEATURES = ("lexicon_hits", "lexicon_density", "lexicon_weight", "lexicon_disguised", "lexicon_terms")


@dataclass(frozen=True)
class Lexicon:
    """Lexicon of compiled terms, each with a weight and a category."""

    terms: TermTable
    weights: F64
    categories: tuple[str, ...]

    def find(self, texts: pa.Array, obfuscated: bool = True) -> TermHits:
        """Return the matches of terms in texts."""
        return self.terms.find(texts, obfuscated)

    def features(self, hits: TermHits, words: I64) -> F32:
        """Return features of every text, [documents, 5]: logarithm of the number of matches, total weight of matches
        per 100 words, largest weight, share of obfuscated matches, and logarithm of the number of different terms."""
        out = np.zeros((hits.starts.size - 1, len(FEATURES)), np.float32)
        for doc in np.flatnonzero(np.diff(hits.starts)):
            own = slice(hits.starts[doc], hits.starts[doc + 1])
            weights = self.weights[hits.terms[own]]
            out[doc] = (
                math.log1p(weights.size),
                100 * weights.sum() / max(int(words[doc]), 1),
                weights.max(),
                hits.obfuscated[own].mean(),
                math.log1p(np.unique(hits.terms[own]).size),
            )
        return out


def read(files: Mapping[str, Path], key: str) -> Lexicon:
    """Read the lexicon from the files of a list.

    Args:
        key: name of the asset (`lists/NAME`), for error messages.

    Raises:
        SourceError: the list is malformed; the error names file, line and fault.
    """
    entries: dict[str, tuple[float, str]] = {}
    for name in sorted(files):
        for number, line in _lines(files[name].read_bytes(), key, name):
            where = f"{key}, {name} line {number}"
            term, value = _entry(line, where)
            if entries.setdefault(term, value) != value:
                raise _refused(where, f"a duplicate of {term!r} with a different weight or category", "unique terms")
            if len(entries) > MAX_TERMS:
                raise _refused(where, f"more than {MAX_TERMS} terms", "fewer")
    if not entries:
        raise _refused(key, "no terms", EXPECTED)
    weights, categories = zip(*entries.values(), strict=True)
    return Lexicon(TermTable(tuple(entries)), np.array(weights), categories)


def _lines(data: bytes, key: str, name: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise _refused(f"{key}, {name} line {number}", error, "UTF-8") from error
        if line.strip() and not line.startswith("#"):
            yield number, line


def _entry(line: str, where: str) -> tuple[str, tuple[float, str]]:
    fields = line.split("\t")
    if len(fields) != 3:
        raise _refused(where, f"{len(fields)} fields", EXPECTED)
    term, weight, category = (unicodedata.normalize("NFC", field.strip()) for field in fields)
    term = " ".join(term.lower().split())
    if any(unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn") for one in term):
        raise _refused(where, f"{term!r} has control or invisible characters", "letters, digits, spaces, punctuation")
    if len(term) > LEXICON_MAX_CHARACTERS:
        raise _refused(where, f"a term of {len(term)} characters", f"at most {LEXICON_MAX_CHARACTERS}")
    if term in COMMON_WORDS or len(term) < 2 or not any(one.isalpha() for one in term):
        found = f"{term!r}, a common word"
        raise _refused(where, found, "a term of at least two characters that has a letter and is not a common word")
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1 or not CATEGORY.fullmatch(category):
        raise _refused(where, f"weight {weight!r}, category {category!r}", EXPECTED)
    try:
        TermTable([term])
    except ValueError as error:
        raise _refused(where, error, f"1 to {MAX_WORDS} words") from error
    return term, (value, category)


def _refused(where: str, found: object, expected: str) -> PlinthError:
    remedy = "fix the list; no part of it is used"
    return SourceError(f"{where} is invalid", found=found, expected=expected, remedy=remedy)
