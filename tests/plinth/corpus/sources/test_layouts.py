"""Layouts of other toolkits, read without a key in the recipe: datatrove's by its own writers, Dolma's."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.sources.record import EXCLUSIONS, Reject

#: As datatrove's reader of WARC files and its filters leave a document.
WEB = {
    "url": "https://e.org/page",
    "date": "2024-02-21T03:04:05Z",
    "file_path": "s3://commoncrawl/crawl-data/CC-MAIN-2024-10/x.warc.gz",
    "language": "en",
    "language_score": 0.93,
    "minhash": {"cluster": 7},
    "license": "CC-BY-4.0",
}


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_datatrove_writes_is_read_with_its_metadata(
    read_file: Any, tmp_path: Path, kind: str, expand: bool
) -> None:
    writers = pytest.importorskip("datatrove.pipeline.writers")
    document = pytest.importorskip("datatrove.data").Document
    given = [
        document(text=f"Text {i}.", id=f"<urn:uuid:{i}>", metadata={**WEB, "url": f"{WEB['url']}{i}"}) for i in (1, 2)
    ]
    writer = {"jsonl": writers.JsonlWriter, "parquet": writers.ParquetWriter}[kind]
    with writer(str(tmp_path / "out"), expand_metadata=expand) as out:
        for one in given:
            out.write(one)
    (path,) = (tmp_path / "out").iterdir()
    found = read_file(kind, path.name, path.read_bytes(), licence="per-document")
    assert [(item.content, item.uri) for item in found] == [(one.text, one.metadata["url"]) for one in given]
    item = found[0]
    assert (item.captured_at, item.licence) == (datetime(2024, 2, 21, 3, 4, 5, tzinfo=UTC), "CC-BY-4.0")
    kept = {name: WEB[name] for name in ("date", "file_path", "language", "language_score", "minhash")}
    assert item.extra == {**kept, "id": "<urn:uuid:1>"}


def test_dolma(read_file: Any) -> None:
    """Documents in the form of Dolma's `docs/data-format.md`; attribute files next to them are counted, not damaged."""
    row = {
        "id": "7f",
        "text": "Text.",
        "source": "common-crawl",
        "added": "2023-04-11T09:57:03.044Z",
        "created": "2021-10-26T12:11:36.000Z",
        "metadata": {"url": "https://e.org/", "length": 5},
    }
    attributes = {"id": "7f", "attributes": {"lang__en": [[0, 5, 0.9]]}}
    data = gzip.compress(b"\n".join(json.dumps(one).encode() for one in (row, attributes)))
    item, about = read_file("jsonl", "c4-0000.json.gz", data)
    assert (item.uri, item.content) == ("https://e.org/", "Text.")
    assert item.captured_at == datetime(2021, 10, 26, 12, 11, 36, tzinfo=UTC)
    told = {name: row[name] for name in ("id", "source", "added", "created")}
    assert item.extra == {**told, "length": 5}
    assert isinstance(about, Reject)
    assert about.reason in EXCLUSIONS


def test_metadata_as_json_and_under_a_named_field(read_file: Any) -> None:
    row = {"id": 1, "metadata": json.dumps({"text": "inner", "uri": "https://e.org/a", "n": [1]}), "n": 2}
    (item,) = read_file("jsonl", "x.jsonl", json.dumps(row).encode(), text_field="metadata.text")
    assert (item.content, item.uri, item.extra) == ("inner", "https://e.org/a", {"id": 1, "n": 2})
    (item,) = read_file("jsonl", "x.jsonl", b'{"text": "x", "metadata": "no JSON"}')
    assert item.extra == {"metadata": "no JSON"}
