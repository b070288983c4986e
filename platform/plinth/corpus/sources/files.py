"""Readers of single files (HTML pages, PDF, LaTeX, plain text, source code), of JSON lines and of Parquet."""

from __future__ import annotations

import codecs
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from pydantic import Field

from plinth.corpus.llm.parameters import RewriteParams
from plinth.corpus.sources.codings import HEAD_BYTES, has_nul, signature
from plinth.corpus.sources.fields import Fields, kind_of
from plinth.corpus.sources.inventory import record_licence, row_group_start
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.corpus.sources.streams import COMPRESSED, Fault, TextLine, lines, read_all, stretches, with_compression
from plinth.errors import SourceError
from plinth.records import Frozen
from plinth.storage.files import CHUNK_BYTES, SourceFile, opened

#: Type of a file that is not text, by its first bytes; empty for text.
Binary = Callable[[bytes], str]
#: Media types of source trees by file name ending; the rest is `text/plain`.
MIME_BY_SUFFIX = {
    ".py": "text/x-python", ".pyi": "text/x-python", ".c": "text/x-c", ".h": "text/x-c", ".cpp": "text/x-c++",
    ".hpp": "text/x-c++", ".rs": "text/x-rust", ".go": "text/x-go", ".java": "text/x-java", ".js": "text/javascript",
    ".ts": "text/x-typescript", ".sh": "text/x-shellscript", ".md": "text/markdown", ".rst": "text/x-rst",
    ".tex": "text/x-tex", ".sql": "application/sql", ".toml": "application/toml", ".yaml": "application/yaml",
    ".yml": "application/yaml", ".json": "application/json", ".xml": "application/xml", ".css": "text/css",
}  # fmt: skip


def read_html(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read an HTML file as one page, without decoding it."""
    found = _content(file, max_bytes, signature)
    yield found if isinstance(found, Reject) else _record(file, found, "text/html", licence)


def read_pdf(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read a PDF file as one document. The bytes are not decoded here; the extractor produces the text."""
    found = _content(file, max_bytes, lambda head: "")
    yield found if isinstance(found, Reject) else _record(file, found, "application/pdf", licence)


def read_latex(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read a LaTeX file as one document. The bytes are not decoded here; the extractor produces the text."""
    found = _content(file, max_bytes, _binary_in_tree)
    yield found if isinstance(found, Reject) else _record(file, found, MIME_BY_SUFFIX[".tex"], licence)


def read_text(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read a text file as one document. The file is UTF-8, or UTF-16 with a byte order mark."""
    yield _text(file, "text/plain", licence, max_bytes, signature)


def read_tree(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read a source code file as one document, whose media type depends on the suffix. Binary files become rejects."""
    name = file.name.lower()
    packed = next((end for end in COMPRESSED if name.endswith(end)), "")
    suffix = "." + name.removesuffix(packed).rpartition(".")[2]
    yield _text(file, MIME_BY_SUFFIX.get(suffix, "text/plain"), licence, max_bytes, _binary_in_tree)


def decode_text(data: bytes) -> str:
    """Decode bytes as UTF-8, or as UTF-16 if there is a byte order mark. The byte order mark is dropped.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8 and not UTF-16 with a byte order mark.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def _binary_in_tree(head: bytes) -> str:
    return signature(head) or ("NUL near the beginning" if has_nul(head) else "")


def _text(file: SourceFile, mime: str, licence: str, max_bytes: int, binary: Binary) -> RawRecord | Reject:
    found = _content(file, max_bytes, binary)
    if isinstance(found, Reject):
        return found
    try:
        text = decode_text(found)
    except UnicodeDecodeError as error:
        detail = f"byte {error.start}: {error.reason}"
        return Reject(file.name, "file", "invalid_utf8", detail, len(found))
    return _record(file, text, mime, licence)


def _content(file: SourceFile, max_bytes: int, binary: Binary) -> bytes | Reject:
    """Return the decompressed bytes of a file. Several gzip members are joined. Any damage makes the whole file a
    reject."""

    def refused(reason: str, detail: str) -> Reject:
        return Reject(file.name, "file", reason, detail, file.bytes)

    content = b""
    with opened(file) as raw:
        if file.bytes > max_bytes and not file.name.lower().endswith(COMPRESSED):
            if found := binary(raw.read(HEAD_BYTES)):
                return refused("binary", found)
            return refused("too_large", f"{file.bytes} bytes, at most {max_bytes}")
        for part in stretches(raw, file.name):
            data = read_all(part, max_bytes - len(content))
            if data is None:
                return refused("too_large", f"inflates to more than {max_bytes} bytes")
            if part.fault:
                return refused(part.fault.reason, part.fault.detail)
            content += data
    if not content:
        return refused("empty", "no bytes")
    if found := binary(content[:HEAD_BYTES]):
        return refused("binary", found)
    return content


def _record(file: SourceFile, content: str | bytes, mime: str, licence: str) -> RawRecord:
    return RawRecord(
        uri=file.name,
        content=content,
        mime=mime,
        licence=record_licence(licence, None),
        source_bytes=file.bytes,
        where="file",
    )


HTML = Reader(
    name="html",
    description="One HTML page per file.",
    read=read_html,
    suffixes=with_compression(".html", ".htm", ".xhtml"),
    licensed_by_file=True,
)
PDF = Reader(
    name="pdf",
    description="One PDF document per file; the text of all its pages is read.",
    read=read_pdf,
    suffixes=with_compression(".pdf"),
    licensed_by_file=True,
)
LATEX = Reader(
    name="latex",
    description="One LaTeX document per file; its text is read, with math and tables.",
    read=read_latex,
    suffixes=with_compression(".tex"),
    licensed_by_file=True,
)
TEXT = Reader(name="text", description="One document of plain text per file.", read=read_text, licensed_by_file=True)
TREE = Reader(name="tree", description="One document per source code file.", read=read_tree, licensed_by_file=True)


def read_jsonl(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read the JSON objects of a file, one per line. If the file is in pieces, read the lines of one piece. Blank lines
    are skipped."""
    fields = Fields(file, source, licence, max_bytes)
    with opened(file) as raw:
        for line in lines(stretches(raw, file.name), max_bytes, file.before):
            if isinstance(line, Fault):
                yield Reject(file.name, "file", line.reason, line.detail)
            elif line.data is None:
                detail = f"{line.bytes} bytes in one line, at most {max_bytes}"
                yield Reject(f"{file.name}#L{line.number}", f"line {line.number}", "too_large", detail, line.bytes)
            elif line.data.strip():
                yield _record_jsonl(file, fields, line, line.data)


def _record_jsonl(file: SourceFile, fields: Fields, line: TextLine, data: bytes) -> RawRecord | Reject:
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


JSONL = Reader(
    name="jsonl",
    description="JSON lines: one record per line.",
    read=read_jsonl,
    suffixes=with_compression(".jsonl", ".ndjson", ".json"),
)


# Parquet: one record per row, text in a column the recipe names; the other columns as in `fields`.
#
# A file, or the row groups of a piece with the footer, is first copied to a temporary file and compared with
# the inventory: random access cannot be checked while it reads. Then row groups are streamed page by
# page, and only columns that are used.

BUFFER_BYTES = 1 << 20
BATCH_BYTES, BATCH_ROWS = 16 * 2**20, 1024
#: Bounds on what a footer may make the reader allocate.
THRIFT_BYTES, THRIFT_ITEMS = 64 * 2**20, 10**6
#: A column of a row group that declares to inflate to more than this many times `max_bytes` is refused unread.
MAX_COLUMN_FACTOR = 1024


def read_parquet(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Read the rows of a Parquet file in order. If the file is in pieces, read the row groups that begin in one piece.

    Raises:
        SourceError: the file does not have the column that the recipe names, or has two columns with the same name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile(prefix="plinth-parquet-") as copy:
        _copied(file, copy)
        row = 0
        try:
            found = pq.ParquetFile(
                copy,
                pre_buffer=False,
                buffer_size=BUFFER_BYTES,
                thrift_string_size_limit=THRIFT_BYTES,
                thrift_container_size_limit=THRIFT_ITEMS,
                page_checksum_verification=True,
            )
            columns = _columns(file, source, found.schema_arrow)
            unread = [name for name in found.schema_arrow.names if name not in columns]
            fields = Fields(file, source, licence, max_bytes, unread)
            for index in range(found.num_row_groups):
                group = found.metadata.row_group(index)
                first, row = row, row + group.num_rows
                if not _begins_in(file, group, index):
                    continue
                yield from _rows(found, index, columns, fields, first, max_bytes, file)
        except (pa.ArrowException, OSError, ValueError, RecursionError, MemoryError) as error:
            yield Reject(file.name, f"row {row}", "broken_parquet", f"{error}", file.bytes)


def _copied(file: SourceFile, copy: IO[bytes]) -> None:
    """Copy the bytes of a file or piece to the same offsets in `copy`. The gap before the footer stays sparse."""
    copy.seek(file.start)
    with opened(file) as raw:
        while data := raw.read(CHUNK_BYTES):
            copy.write(data)
            if raw.tell() == file.bytes and file.tail:
                copy.seek(file.whole - file.tail)
    copy.seek(0)


def _begins_in(file: SourceFile, group: Any, index: int) -> bool:
    if not file.whole:
        return True
    # Nothing before the first group counts, and an empty group has no place of its own.
    start = row_group_start(group)
    return (file.start <= start < file.start + file.bytes) if group.num_rows else False


def _columns(file: SourceFile, source: Source, schema: Any) -> list[str]:
    """Return the columns to read: scalar and nested columns, `media`, and the columns that the recipe names. Bytes and
    lists of numbers (images, embeddings) are left out.

    Raises:
        SourceError: the text column is missing, or two columns have the same name.
    """
    if twice := [name for name, count in Counter(_names(schema)).items() if count > 1]:
        raise SourceError(
            f"{file.uri} has two columns called {twice[0]!r}",
            found=f"columns {', '.join(schema.names)}",
            expected="unique column names",
            remedy="rename or remove one of the columns in the file",
        )
    named = (source.text_field, source.uri_field, source.date_field, source.licence_field)
    outer = {name if name in schema.names else name.partition(".")[0] for name in named if name} | {"media"}
    if source.text_field not in schema.names and source.text_field.partition(".")[0] not in schema.names:
        raise SourceError(
            f"{file.uri} has no column {source.text_field!r}",
            found=f"columns {', '.join(schema.names)}",
            expected=f"a text column {source.text_field!r}",
            remedy="set the column in the recipe: `fields: {text: …}` of the source",
        )
    return [field.name for field in schema if field.name in outer or not _is_payload(field.type)]


def _names(fields: Iterable[Any], outer: str = "") -> Iterator[str]:
    """Yield the names of columns, and the dotted paths of the fields inside them."""
    import pyarrow.types as types

    for field in fields:
        yield outer + field.name
        if types.is_struct(field.type):
            yield from _names(field.type, f"{outer}{field.name}.")


def _is_payload(kind: Any) -> bool:
    """Return True for bytes and lists of numbers, which are not metadata and are often larger than the text."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return bool(types.is_primitive(kind.value_type)) or _is_payload(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _rows(
    found: Any, index: int, columns: list[str], fields: Fields, first: int, max_bytes: int, file: SourceFile
) -> Iterator[RawRecord | Reject]:
    group = found.metadata.row_group(index)
    chunks = [group.column(i) for i in range(group.num_columns)]
    size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.partition(".")[0] in columns)
    if size > MAX_COLUMN_FACTOR * max_bytes:
        detail = f"row group {index} inflates to {size} bytes"
        yield Reject(file.name, f"rows from {first + 1}", "too_large", detail, file.bytes)
        return
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(size, 1)))
    number = first
    for batch in found.iter_batches(batch_size=rows, row_groups=[index], columns=columns, use_threads=False):
        for row in _plain(batch):
            number += 1
            where = f"row {number}"
            if row is None:
                detail = "not UTF-8 in a column of text, or a time out of range"
                yield Reject(f"{file.name}#R{number}", where, "broken_record", detail)
                continue
            yield fields.record(row, f"R{number}", where, sum(len(v) for v in row.values() if isinstance(v, str)))


def _plain(batch: Any) -> Iterator[dict[str, Any] | None]:
    """Yield the rows as Python values. Yield None for a row with values that Python cannot represent."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except (ValueError, OverflowError):
                yield None


PARQUET = Reader(
    name="parquet",
    description="Parquet: one record per row.",
    read=read_parquet,
    suffixes=(".parquet", ".parq"),
)


# Text that a model writes, as a source: its parameters, and how what was written is read.
#
# The `path` of such a source names the model; the asset `BUCKET/sampled` writes the text, as JSON lines, which are
# read here like any others.

#: `kind` of the source.
KIND = "teacher"
#: `kind` of a source of documents that a model at an endpoint makes of the documents of another bucket.
REWRITE = "rewrite"
#: Kinds of sources without files of their own.
WRITTEN_KINDS = (KIND, REWRITE)
#: Name of the asset with text that a model wrote for a bucket (`BUCKET/sampled`); `documents` reads it as files.
STAGE = "sampled"


class SampledText(Frozen):
    """Parameters of generated text: the number of documents, and the sampling of tokens. The text of a document depends
    only on the seed and the document's number."""

    documents: int = Field(1000, ge=1, description="Number of documents to generate.")
    max_tokens: int = Field(512, ge=1, description="Maximum number of tokens per document.")
    temperature: float = Field(
        1.0,
        ge=0,
        description="Temperature, by which logits are divided; if 0, the most probable token is chosen.",
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus sampling: cumulative probability of the tokens to draw from."
    )
    seed: int = Field(1, ge=0, description="Seed for sampling tokens.")


SAMPLED = Reader(
    name=KIND,
    description="Text generated by a release or checkpoint of this workspace, which `path` names.",
    read=JSONL.read,
    params=SampledText,
)
REWRITTEN = Reader(
    name=REWRITE,
    description="Documents that a language model makes of the documents of the bucket that `path` names.",
    read=JSONL.read,
    params=RewriteParams,
)
