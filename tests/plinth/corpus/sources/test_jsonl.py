"""JSON lines: every line is a record or a counted reject."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.sources.record import Reject

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".zstd": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
}


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


ANOTHER = f"x.jsonl#1~{hashlib.blake2b(b'another under the same id', digest_size=8).hexdigest()}"


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
        *("x.jsonl#1", ANOTHER, "missing_field", "missing_field", "broken_record", "broken_record"),
        *("invalid_utf8", "broken_record", "https://example.org/"),
    ]


def test_an_id_that_stands_on_several_texts_is_no_identity(read_file: Any) -> None:
    """All texts are kept under names of their own; equal texts have equal names; each such id is marked once."""
    ids: list[Any] = ["book", "book", "book", 1, "1", "1", "", None, " ", {"$oid": "x"}, {"$oid": "y"}]
    texts = ["a", "b", "b", "c", "d", "c", "e", "f", "g", "h", "i"]
    data = "\n".join(json.dumps({"id": key, "text": text}) for key, text in zip(ids, texts, strict=True)).encode()
    items = read_file("jsonl", "x.jsonl", data)
    assert [item.content for item in items] == texts
    names = [item.uri.removeprefix("x.jsonl#") for item in items]
    b, d = (hashlib.blake2b(text, digest_size=8).hexdigest() for text in (b"b", b"d"))
    assert names[:6] == ["book", f"book~{b}", f"book~{b}", "1", f"1~{d}", "1"]
    assert names[6:] == ["L7", "L8", "L9", "{'$oid': 'x'}", "{'$oid': 'y'}"]
    assert [number for number, item in enumerate(items) if item.repeated_id] == [1, 4]


def test_an_id_does_not_matter_where_there_is_an_address_or_metadata_has_it(read_file: Any) -> None:
    rows: list[Any] = [{"id": 1, "url": f"https://e.org/{i}", "text": f"{i}"} for i in range(3)]
    rows += [{"text": f"{i}", "metadata": {"id": "parent"}} for i in range(3)]
    items = read_file("jsonl", "x.jsonl", "\n".join(map(json.dumps, rows)).encode())
    assert len({item.uri for item in items}) == 6
    assert [item.uri for item in items[:3]] == [f"https://e.org/{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ('{"text": 12345}', "field `text` is a number, expected text"),
        ('{"text": NaN}', "field `text` is a number, expected text"),
        ('{"text": true}', "field `text` is a boolean, expected text"),
        ('{"text": ["a", "b"]}', "field `text` is a list, expected text"),
        ('{"text": {"v": "a"}}', "field `text` is an object, expected text"),
        ('{"TEXT": "x"}', "no field `text` (has `TEXT`)"),
        ('{"body": "x", "metadata": {"lang": "en"}}', "no field `text` (has `body`, `metadata`)"),
        ("{}", "no field `text` (has none)"),
        ('["a"]', "a list, expected an object"),
        ('"a"', "a string, expected an object"),
        ('{"text": "a", "n": {"text": 1}, "text": "b"}', "two fields `text` in one object"),
    ],
)
def test_what_is_no_text_is_named(read_file: Any, line: str, detail: str) -> None:
    (item,) = read_file("jsonl", "x.jsonl", line.encode())
    assert (item.reason, item.detail) == ("broken_record" if "object" in detail[-9:] else "missing_field", detail)


def test_a_field_of_the_same_name_elsewhere_is_no_second_text(read_file: Any) -> None:
    line = b'\xef\xbb\xbf{"text": "a \\"text\\"", "n": {"text": 1}, "k": "text"}\r\n\r\n'
    (item,) = read_file("jsonl", "x.jsonl", line)
    assert item.content == 'a "text"'


@pytest.mark.parametrize("end", ["", ".gz", ".GZ", ".zst", ".zstd", ".bz2", ".xz"])
def test_compression_is_seen_through(read_file: Any, end: str) -> None:
    data = b"".join(json.dumps({"text": f"line {i}"}).encode() + b"\n" for i in range(3_000))
    items = read_file("jsonl", f"x.jsonl{end}", PACK[end.lower()](data))
    assert [item.content for item in items] == [f"line {i}" for i in range(3_000)]


@pytest.mark.parametrize("end", [".gz", ".zst", ".bz2", ".xz"])
def test_lines_cross_members(read_file: Any, end: str) -> None:
    data = PACK[end](b'{"text": "o') + PACK[end](b'ne"}\n{"text": "two"}\n')
    assert [item.content for item in read_file("jsonl", f"x.jsonl{end}", data)] == ["one", "two"]
    padded = data + b"\0" * 64 if end != ".zst" else data
    assert [item.content for item in read_file("jsonl", f"x.jsonl{end}", padded)] == ["one", "two"]


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_an_empty_compressed_file_is_empty(read_file: Any, end: str) -> None:
    for data in (b"", PACK[end](b"")):
        assert reasons(read_file("jsonl", f"x.jsonl{end}", data)) == ["empty"]


@pytest.mark.parametrize(("end", "reason"), [(".bz2", "broken_bzip2"), (".xz", "broken_xz")])
def test_damage_after_a_whole_stream_is_counted(read_file: Any, end: str, reason: str) -> None:
    data = PACK[end](b'{"text": "one"}\n') + b"no stream"
    items = read_file("jsonl", f"x.jsonl{end}", data)
    assert [getattr(item, "content", None) or item.reason for item in items] == ["one", reason]


@pytest.mark.parametrize(
    ("end", "reason"),
    [(".gz", "truncated_gzip"), (".zst", "truncated_zstd"), (".bz2", "broken_bzip2"), (".xz", "broken_xz")],
)
def test_truncation_keeps_what_came_before(read_file: Any, end: str, reason: str) -> None:
    words = (hashlib.sha256(b"%d" % i).hexdigest() for i in range(32_000))
    data = b"".join(json.dumps({"text": word}).encode() + b"\n" for word in words)
    packed = PACK[end](data)
    items = read_file("jsonl", f"x.jsonl{end}", packed[: len(packed) // 2])
    assert len(items) > 1000
    assert items[-1].reason == reason
    assert not any(isinstance(item, Reject) for item in items[:-1])


def giant_line(megabytes: int) -> tuple[bytes, int]:
    """A compressed file with a long line between two short ones, written a megabyte at a time; the line's bytes."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=1) as stream:
        stream.write(b'{"text": "before"}\n{"text": "')
        for _ in range(megabytes):
            stream.write(b"x" * 1_000_000)
        stream.write(b'"}\n{"text": "after"}\n')
    return packed.getvalue(), len(b'{"text": ""}') + megabytes * 1_000_000


def test_a_line_of_200_megabytes_is_passed_over_in_bounded_memory(read_file: Any) -> None:
    packed, size = giant_line(200)
    tracemalloc.start()
    items = read_file("jsonl", "x.jsonl.gz", packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [getattr(item, "content", None) or item.reason for item in items] == ["before", "too_large", "after"]
    assert items[1].source_bytes == size
    assert peak < 10_000_000
