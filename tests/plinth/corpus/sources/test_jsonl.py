"""JSON lines: every line is a record or a counted reject."""

from __future__ import annotations

import gzip
import hashlib
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.sources.fields import parse_time
from plinth.corpus.sources.record import Reject


def reasons(items: list[Any]) -> list[str]:
    return [item.reason if isinstance(item, Reject) else item.uri for item in items]


def test_fields(read_file: Any) -> None:
    row = {"id": "a", "body": "words", "license": "ISC", "date": "2026-01-02T03:04:05+01:00", "stars": 3, "tags": [1]}
    (item,) = read_file("jsonl", "x.jsonl", json.dumps(row).encode(), licence="per-document", text_field="body")
    assert (item.uri, item.content, item.licence) == ("x.jsonl#a", "words", "ISC")
    assert item.captured_at == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert item.extra == {"id": "a", "stars": 3, "date": row["date"], "tags": [1]}


def test_nested_metadata_is_kept_or_named(read_file: Any) -> None:
    row = {"body": {"text": "words", "lang": "en"}, "meta": {"a": [1, {"b": None}]}, "none": None}
    row |= {"large": ["x" * 3000], "odd": [float("nan")], "infinite": float("inf"), "media": [{"data": "AAAA"}]}
    (item,) = read_file("jsonl", "x.jsonl", json.dumps(row).encode(), text_field="body.text")
    assert item.content == "words"
    assert item.extra == {
        "body": {"lang": "en"},
        "meta": {"a": [1, {"b": None}]},
        "left_out": ["infinite", "large", "odd"],
    }
    many = {"text": "x", **{f"f{i:02d}": i for i in range(70)}}
    (item,) = read_file("jsonl", "x.jsonl", json.dumps(many).encode())
    assert item.extra["left_out"] == [f"f{i:02d}" for i in range(64, 70)]


def test_null_is_an_empty_text_and_no_field_is_damage(read_file: Any) -> None:
    data = b'{"text": null}\n{"words": "x"}\n{"text": ""}'
    found = read_file("jsonl", "x.jsonl", data)
    assert reasons(found[:2]) == ["empty", "missing_field"]
    assert found[2].content == ""


def test_the_licence_of_the_source_wins_and_a_missing_one_is_unknown(read_file: Any) -> None:
    data = b'{"text": "a", "licence": "ISC"}\n{"text": "b"}'
    assert [item.licence for item in read_file("jsonl", "x.jsonl", data, licence="MIT")] == ["MIT", "MIT"]
    assert [item.licence for item in read_file("jsonl", "x.jsonl", data, licence="per-document")] == ["ISC", "unknown"]


def test_every_line_is_accounted_for(read_file: Any) -> None:
    data = b"\n".join(
        [
            b'{"id": 1, "text": "one"}',
            b"",
            b'{"id": 1, "text": "another under the same id"}',
            b'{"id": 2, "words": "no text"}',
            b'{"id": 3, "text": 7}',
            b"[1, 2]",
            b'{"id": 4, "text": "cut',
            b'{"id": 5, "text": "\xff"}',
            b"[" * 100_000,
            b'{"uri": "https://example.org/", "text": "last"}',
        ]
    )
    assert reasons(read_file("jsonl", "x.jsonl", data)) == [
        *("x.jsonl#1", "duplicate_id", "missing_field", "missing_field", "broken_record", "broken_record"),
        *("invalid_utf8", "broken_record", "https://example.org/"),
    ]


@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_compression_is_seen_through(read_file: Any, end: str) -> None:
    data = b"".join(json.dumps({"text": f"line {i}"}).encode() + b"\n" for i in range(20_000))
    packed = {"": data, ".gz": gzip.compress(data), ".zst": pa.compress(data, codec="zstd", asbytes=True)}[end]
    items = read_file("jsonl", f"x.jsonl{end}", packed)
    assert [item.content for item in items] == [f"line {i}" for i in range(20_000)]


def test_lines_cross_gzip_members(read_file: Any) -> None:
    data = gzip.compress(b'{"text": "o') + gzip.compress(b'ne"}\n{"text": "two"}\n')
    assert [item.content for item in read_file("jsonl", "x.jsonl.gz", data)] == ["one", "two"]


@pytest.mark.parametrize(("end", "reason"), [(".gz", "truncated_gzip"), (".zst", "truncated_zstd")])
def test_truncation_keeps_what_came_before(read_file: Any, end: str, reason: str) -> None:
    words = (hashlib.sha256(b"%d" % i).hexdigest() for i in range(20_000))
    data = b"".join(json.dumps({"text": word}).encode() + b"\n" for word in words)
    packed = gzip.compress(data) if end == ".gz" else pa.compress(data, codec="zstd", asbytes=True)
    items = read_file("jsonl", f"x.jsonl{end}", packed[: len(packed) // 2])
    assert len(items) > 1000
    assert items[-1].reason == reason
    assert not any(isinstance(item, Reject) for item in items[:-1])


def test_a_line_of_200_megabytes_is_passed_over_in_bounded_memory(read_file: Any) -> None:
    giant = b'{"text": "' + b"x" * 200_000_000 + b'"}'
    packed = gzip.compress(b'{"text": "before"}\n' + giant + b'\n{"text": "after"}\n', compresslevel=1)
    size = len(giant)
    del giant
    tracemalloc.start()
    items = read_file("jsonl", "x.jsonl.gz", packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [getattr(item, "content", None) or item.reason for item in items] == ["before", "too_large", "after"]
    assert items[1].source_bytes == size
    assert peak < 10_000_000


@pytest.mark.parametrize("text", ["never", "", "2026-13-01", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time(text: str) -> None:
    assert parse_time(text) is None
