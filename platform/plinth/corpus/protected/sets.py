"""Items of a protected set: one row each, with the text that training must not hold."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus.documents.normalize import normalize
from plinth.corpus.extract.engines import LIBRARIES as EXTRACTORS
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import ExtractionFailure, Page
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.corpus.sources.parameters import Extraction, Normalisation
from plinth.corpus.sources.streams import GZIP_MAGIC
from plinth.errors import SourceError
from plinth.records import Manifest, Step
from plinth.storage import listing
from plinth.storage.files import SourceFile, opened
from plinth.storage.parts import write_table

SET_VERSION = "2"
#: Code that decides the items' text.
LIBRARIES = fingerprint.libraries("ftfy", "unicode")
PAGES = tuple(stem + end for stem in (".html", ".htm", ".xhtml") for end in ("", ".gz"))
#: Main content of pages, by the engine that recipes have unless they name another.
EXTRACTION = Extraction()
PAGE_LIBRARIES = fingerprint.libraries(*EXTRACTORS[EXTRACTION.engine])
ITEMS = pa.schema([pa.field("item", pa.string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])

#: Looked up in memory; a set that is larger is a corpus.
MAX_BYTES = 2**30


def read_set(ctx: Context, name: str, given: ProtectedSet) -> Manifest:
    """The items of a set.

    Returns:
        Manifest of one part with `ITEMS`. Statistics: `items`, `without_text` (lines that none of the fields is in).

    Raises:
        SourceError: nothing is there, a line is no JSON object, a page cannot be read, an item that `only` names is not
            there, or no line has text.
    """
    files, pages = _divided(inventory(ctx, given), set(given.only))
    if (size := sum(file.bytes for file in (*files, *pages))) > MAX_BYTES:
        raise SourceError(f"protected set {name} is too large", found=f"{size} bytes", expected=f"at most {MAX_BYTES}")
    rows: list[tuple[str, str]] = []
    silent, wanted = 0, set(given.only)
    for file in files:
        for number, record in _records(file):
            text = "\n".join(str(record[field]) for field in given.fields if record.get(field) not in (None, ""))
            text = normalize(text, Normalisation())  # as documents are: an item in NFD would match none of them
            name_of_item = str(record.get(given.id_field, f"{file.name.strip('/')}:{number}"))
            if wanted and name_of_item not in wanted:
                continue
            silent += not text.strip()
            if text.strip():
                rows.append((name_of_item, text))
    rows += ((page, text) for page, text in _page_texts(pages) if text.strip())
    if missing := sorted(wanted - {item for item, _ in rows}):
        raise SourceError(
            f"protected set {name} lacks items that it names",
            found=f"no text of {', '.join(missing[:10])}" + (f" and {len(missing) - 10} more" if missing[10:] else ""),
            expected=f"{given.id_field} of lines in {given.path}",
            remedy=f"correct corpus.protected.sets.{name}.only: what is not read is not protected",
        )
    if not rows:
        raise SourceError(
            f"protected set {name} has no text",
            found=f"{silent} lines without the fields {', '.join(given.fields)}",
            remedy=f"correct corpus.protected.sets.{name}.fields",
        )
    table = pa.table({"item": [row[0] for row in rows], "text": [row[1] for row in rows]}, schema=ITEMS)
    inputs = {f"file:{file.name.strip('/')}": file.sha256 for file in (*files, *pages)}
    step = Step(
        name="protected",
        version=SET_VERSION,
        params=given.model_dump(mode="json", exclude={"path"}),
        libraries=LIBRARIES | PAGE_LIBRARIES if pages else LIBRARIES,
    )
    part = write_table(ctx.store, "items.parquet", table)
    return manifest(f"protected/{name}", step, inputs, [part], {"items": len(rows), "without_text": silent})


def inventory(ctx: Context, given: ProtectedSet) -> list[SourceFile]:
    """The files that a set reads. Where it names nothing but pages, no other file of the folder is opened."""
    pages = given.only if all(name.endswith(PAGES) for name in given.only) else ()
    return listing.inventory(given.path, ctx.workspace.input, suffixes=pages)


def identity(ctx: Context, given: ProtectedSet) -> str:
    """Identity of the files that a set reads: names and contents."""
    return fingerprint.digest([[file.name, file.sha256] for file in inventory(ctx, given)])


def _divided(files: Sequence[SourceFile], only: set[str]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Files of lines, and the HTML pages wanted; links to files that are read under another name are left out."""
    pages = [file for file in files if file.name.endswith(PAGES)]
    lines = [file for file in files if not file.name.endswith(PAGES)]
    return lines, [file for file in pages if (file.name in only if only else not file.refused)]


def _page_texts(pages: Sequence[SourceFile]) -> Iterator[tuple[str, str]]:
    """Name and main content of each page, in normal form, as documents of HTML sources have it.

    Raises:
        SourceError: a page cannot be read.
    """
    if not pages:
        return
    with Extractor(EXTRACTION) as extractor:
        for file in pages:
            with opened(file) as stream:
                (answer,) = extractor.extract([Page(_plain(file, stream.read()))])
            if isinstance(answer, ExtractionFailure):
                raise SourceError(
                    f"{file.name} is no page that can be read",
                    found=f"{answer.reason}: {answer.detail}",
                    remedy="take it away: an item that is not read is not protected",
                )
            yield file.name, normalize(answer.text, Normalisation())


def _plain(file: SourceFile, data: bytes) -> bytes:
    """The bytes of a file that may be gzipped.

    Raises:
        SourceError: it is damaged, or holds more than `MAX_BYTES`.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{file.name} does not decompress", found=error, remedy="fetch the file again") from error
    if len(data) > MAX_BYTES:
        raise SourceError(f"{file.name} is too large", found=f"more than {MAX_BYTES} bytes", expected="fewer")
    return data


def _records(file: SourceFile) -> Iterator[tuple[int, dict[str, Any]]]:
    with opened(file) as stream:
        data = _plain(file, stream.read())
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"a {type(record).__name__}")
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{file.name}, line {number} is no item of a protected set",
                found=error,
                expected="a JSON object",
                remedy="correct the file: an item that is not read is not protected",
            ) from error
        yield number, record
