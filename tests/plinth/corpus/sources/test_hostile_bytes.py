"""Any bytes at all: every reader gives records and rejects, nothing else; every record one row or one reject."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus.documents import documents
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import ExtractionFailure, Page, Text
from plinth.corpus.sources.codings import decode
from plinth.corpus.sources.inventory import groups, inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Extraction, Source
from plinth.corpus.sources.record import READERS, RawRecord, Reject, read
from plinth.errors import SourceError
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

MAX_BYTES = 20_000
NAMES = {
    "warc": ("x.warc", "x.warc.gz", "x.warc.zst"),
    "jsonl": ("x.jsonl", "x.jsonl.gz", "x.jsonl.zst"),
    "parquet": ("x.parquet",),
    "html": ("x.html", "x.html.gz"),
    "pdf": ("x.pdf", "x.pdf.gz"),
    "latex": ("x.tex",),
    "text": ("x.txt",),
    "tree": ("x.py",),
    "teacher": ("x.jsonl",),
}
FACTS = {"path": "in", "licence": "MIT", "domain": "d", "snapshot": "s"} | {
    "terms": {"train": True, "redistribute": True, "commercial": True}
}
#: Kinds whose text comes from the extractor.
PAGES = ("html", "pdf", "latex")
CASES = [(kind, name) for kind, names in NAMES.items() for name in names]
fuzz = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def warc(body: bytes, *, length: int | None = None, header: bytes = b"", kind: bytes = b"response") -> bytes:
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + header + b"\r\n" + body
    head = b"WARC/1.1\r\nWARC-Type: %s\r\nWARC-Target-URI: https://e.org/\r\nContent-Type: application/http\r\n" % kind
    return head + b"Content-Length: %d\r\n\r\n" % (len(http) if length is None else length) + http + b"\r\n\r\n"


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=2)
    return out.getvalue()


WHOLE = {
    "warc": b"".join(warc(b"<p>page %d</p>" % n) for n in range(3)),
    "jsonl": b"".join(json.dumps({"text": f"line {n}", "id": n}).encode() + b"\n" for n in range(5)),
    "parquet": parquet([{"text": f"row {n}", "url": f"https://e.org/{n}"} for n in range(5)]),
    "html": b"<html><head><title>T</title></head><body><p>some text</p></body></html>",
    "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer << /Root 1 0 R >>\n%%EOF\n",
    "latex": b"\\section{T} some text",
    "text": b"some text",
    "tree": b"x = 1",
    "teacher": b"".join(json.dumps({"text": f"line {n}", "uri": f"model://m/{n}"}).encode() + b"\n" for n in range(5)),
}


@st.composite
def damaged(draw: st.DrawFn, kind: str, name: str) -> bytes:
    """Bytes of no kind, or a good file with pieces cut out, changed and doubled, before or after compression."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=400))

    def hurt(data: bytes) -> bytes:
        for _ in range(draw(st.integers(0, 3))):
            at, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
            data = data[:at] + draw(st.sampled_from([b"", data[at:end] * 2, draw(st.binary(max_size=9))])) + data[end:]
        return data

    data = hurt(WHOLE[kind])
    if name.endswith(".gz"):
        pieces = [piece for piece in (data[: len(data) // 2], data[len(data) // 2 :]) if piece]
        data = hurt(b"".join(gzip.compress(piece, mtime=0) for piece in pieces))
    return data


def items(folder: Path, kind: str, name: str, data: bytes, piece_bytes: int) -> Iterator[RawRecord | Reject]:
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "in" / name
    path.write_bytes(data)
    source = Source.model_validate({"kind": kind, **FACTS})
    bucket = Bucket(description="", owner="o", sources=(source,))
    try:
        for group in groups(bucket, inventory(bucket, folder, piece_bytes=piece_bytes), 10**9):
            for file, licence in group.files:
                yield from read(file, source, licence, MAX_BYTES)
    finally:
        path.unlink()


@pytest.mark.parametrize(("kind", "name"), CASES)
@fuzz
@given(data=st.data())
def test_readers_give_records_and_rejects_and_raise_nothing_of_their_own(
    tmp_path: Path, kind: str, name: str, data: st.DataObject
) -> None:
    content = data.draw(damaged(kind, name))
    try:
        found = list(items(tmp_path, kind, name, content, data.draw(st.sampled_from([10**6, 60]))))
    except SourceError as error:
        if kind != "parquet" or "no column" not in error.what:  # the one thing that a recipe can fix
            raise
        return
    assert found
    for item in found:
        if isinstance(item, Reject):
            assert item.reason.islower()
            assert item.brief.encode()
        else:
            assert isinstance(item.content, bytes if kind in PAGES else str) or kind == "warc"
            assert len(item.content) <= MAX_BYTES


def test_every_kind_is_fuzzed() -> None:
    assert {*NAMES, "rewrite"} == {*READERS, "rewrite"}  # which reads documents of the store, and no files
    assert set(NAMES) == set(WHOLE)


@fuzz
@given(
    body=st.binary(max_size=200),
    length=st.one_of(st.none(), st.integers(0, 10**19)),
    header=st.sampled_from(
        [
            b"",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Encoding: gzip, br, deflate, zstd\r\n",
            b"Content-Length: 5\r\n",
        ]
    ),
    kind=st.sampled_from([b"response", b"resource", b"revisit", b"continuation", b"\xff", b""]),
    packed=st.booleans(),
)
def test_a_record_that_lies_costs_at_most_itself_in_a_gzipped_file(
    tmp_path: Path, body: bytes, length: int | None, header: bytes, kind: bytes, packed: bool
) -> None:
    records = [warc(b"first"), warc(body, length=length, header=header, kind=kind), warc(b"last")]
    content = b"".join(gzip.compress(record, 1) for record in records) if packed else b"".join(records)
    name = "x.warc.gz" if packed else "x.warc"
    found = list(items(tmp_path, "warc", name, content, 10**6))
    assert isinstance(found[0], RawRecord)
    assert found[0].content == b"first"
    if packed:
        assert isinstance(found[-1], RawRecord)
        assert found[-1].content == b"last"
        assert len(found) <= 5


@pytest.fixture(scope="module")
def extractors() -> Iterator[dict[str, Extractor]]:
    names = ("blocks", "blocks+trafilatura", "resiliparse", "trafilatura")
    made = {name: Extractor(Extraction(engine=name, seconds_per_page=20)) for name in names}
    yield made
    for extractor in made.values():
        extractor.__exit__(None, None, None)


TAGS = (
    *("<p>", "</p>", "<div>", "<table>", "<tr>", "<td>", "<pre>", "<!--", "-->", "<![CDATA[", "]]>", "<script>"),
    *("</script>", "<svg>", "<math>", "<meta charset=", "<title>", "<base href=", "<a href=", "&amp;", "&#0;"),
    *("&#x110000;", "&nosuch;", "<!DOCTYPE", "<html", "<body>", "<template>", "<plaintext>"),
)
MARKUP = st.lists(
    st.one_of(
        st.sampled_from(TAGS),
        st.text(max_size=8),
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("engine", ["blocks", "blocks+trafilatura", "resiliparse", "trafilatura"])
@fuzz
@given(
    body=st.one_of(st.binary(max_size=300), MARKUP.map(lambda text: text.encode("utf-8", "replace"))),
    charset=st.one_of(st.just(""), st.sampled_from(["utf-8", "utf-16", "latin-1", "x-user-defined", "no", "\xff"])),
)
@example(body=b"\xff\xfe", charset="")
@example(body=b"\0<\0p", charset="utf-16")
def test_any_page_gives_text_or_a_reason(
    extractors: dict[str, Extractor], engine: str, body: bytes, charset: str
) -> None:
    (found,) = extractors[engine].extract([Page(body, charset)])
    assert isinstance(found, Text | ExtractionFailure)
    if isinstance(found, ExtractionFailure):
        assert found.reason in ("nul_bytes", "extract_failed"), found
    else:
        assert found.text.encode() is not None
        assert all(isinstance(value, str) and value for value in found.facts.values())


@fuzz
@given(st.binary(max_size=300), st.text(max_size=10))
def test_any_bytes_are_decoded(body: bytes, charset: str) -> None:
    assert isinstance(decode(body, charset, html=True), str)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_counts_add_up(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A part's statistics equal its content, and every item of the reader is a document or a reject."""
    folder = tmp_path_factory.mktemp("fuzz")
    kind, name = data.draw(st.sampled_from([case for case in CASES if case[0] not in ("warc", *PAGES)]))
    content = data.draw(damaged(kind, name))
    (folder / "in").mkdir()
    (folder / "in" / name).write_bytes(content)
    source = Source.model_validate({"kind": kind, **FACTS})
    bucket = Bucket(description="", owner="o", sources=(source,))
    ctx = Context(Workspace(folder / "workspace").ensure())
    (group,) = groups(bucket, inventory(bucket, folder), 10**9)
    work = documents.FileGroupTask(bucket="b", source=source, group=group, params=Documents())
    try:
        part, rejects = documents.make_part(ctx.store, work)
    except SourceError as error:
        if "no column" not in error.what:
            raise
        return
    rows = read_table(ctx.store, part).to_pylist() if part.rows else []
    refused = read_table(ctx.store, rejects).to_pylist() if rejects.rows else []
    seen = list(read(group.files[0][0], source, "MIT", Documents().extraction.max_bytes))
    assert len(rows) + len(refused) == len(seen)
    assert part.stats.get("documents", 0) == len(rows)
    assert rejects.stats["rejects"] == Counter(row["reason"] for row in refused)
    assert part.stats.get("text_bytes", 0) == sum(len(row["text"].encode()) for row in rows)
