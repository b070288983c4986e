"""One record per file: HTML pages, PDF, LaTeX, plain text, source code; each may be compressed."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from plinth.corpus.sources.codings import HEAD_BYTES, has_nul, signature
from plinth.corpus.sources.inventory import record_licence
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.corpus.sources.streams import COMPRESSED, read_all, stretches, with_compression
from plinth.storage.files import SourceFile, opened

#: What a file is that is no text, by its first bytes; empty for text.
Binary = Callable[[bytes], str]
#: Media types of source trees by file name ending; the rest is `text/plain`.
MIME_BY_SUFFIX = {
    ".py": "text/x-python",
    ".pyi": "text/x-python",
    ".c": "text/x-c",
    ".h": "text/x-c",
    ".cpp": "text/x-c++",
    ".hpp": "text/x-c++",
    ".rs": "text/x-rust",
    ".go": "text/x-go",
    ".java": "text/x-java",
    ".js": "text/javascript",
    ".ts": "text/x-typescript",
    ".sh": "text/x-shellscript",
    ".md": "text/markdown",
    ".rst": "text/x-rst",
    ".tex": "text/x-tex",
    ".sql": "application/sql",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".json": "application/json",
    ".xml": "application/xml",
    ".css": "text/css",
}


def read_html(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """An HTML file as one page, undecoded."""
    found = _content(file, max_bytes, signature)
    yield found if isinstance(found, Reject) else _record(file, found, "text/html", licence)


def read_pdf(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """A PDF file as one document; its text comes from the extractor."""
    found = _content(file, max_bytes, lambda head: "")
    yield found if isinstance(found, Reject) else _record(file, found, "application/pdf", licence)


def read_latex(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """A LaTeX file as one document; its text comes from the extractor."""
    found = _content(file, max_bytes, _binary_in_tree)
    yield found if isinstance(found, Reject) else _record(file, found, MIME_BY_SUFFIX[".tex"], licence)


def read_text(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """A text file as one document. UTF-8, or UTF-16 with a byte order mark."""
    yield _text(file, "text/plain", licence, max_bytes, signature)


def read_tree(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """A file of a source-code tree as one document, with the media type of its ending; binary files are none."""
    name = file.name.lower()
    packed = next((end for end in COMPRESSED if name.endswith(end)), "")
    suffix = "." + name.removesuffix(packed).rpartition(".")[2]
    yield _text(file, MIME_BY_SUFFIX.get(suffix, "text/plain"), licence, max_bytes, _binary_in_tree)


def decode_text(data: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so; the mark is dropped.

    Raises:
        UnicodeDecodeError: when it is neither.
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
    """The file's plain bytes; several gzip members are one content, and damage spoils the whole."""

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
    description="An HTML page per file.",
    read=read_html,
    suffixes=with_compression(".html", ".htm", ".xhtml"),
    licensed_by_file=True,
)
PDF = Reader(
    name="pdf",
    description="A PDF per file: the text of its pages.",
    read=read_pdf,
    suffixes=with_compression(".pdf"),
    licensed_by_file=True,
)
LATEX = Reader(
    name="latex",
    description="A LaTeX source per file: its text, with maths and tables.",
    read=read_latex,
    suffixes=with_compression(".tex"),
    licensed_by_file=True,
)
TEXT = Reader(name="text", description="A plain text per file.", read=read_text, licensed_by_file=True)
TREE = Reader(name="tree", description="A file of source code each.", read=read_tree, licensed_by_file=True)
