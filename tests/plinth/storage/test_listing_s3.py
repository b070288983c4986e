"""Source files in a bucket, over a real S3 server: the same names and digests as on disk, and every fault named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.errors import IntegrityError, PlinthError, SourceError
from plinth.storage import listing
from plinth.storage.files import DigestMemory, opened
from tests.s3_server import Bucket, bad_line, serving

FILES = {
    "a.html": b"<p>a",
    "x/b.html": b"<p>b",
    "a b#c?.html": b"<p>c",
    "A::B.html": b"<p>d",
    "schön/%2F.html": b"<p>e",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serving() as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    return Bucket(server.client, server.endpoint)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_a_bucket_lists_and_reads_as_a_folder_does(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("crawl/", b"")  # the marker that consoles make for a folder
    bucket.put("crawl-other/z.html", b"not below the prefix")
    for name, data in FILES.items():
        bucket.put(f"crawl/{name}", data)
        (tmp_path / "crawl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "crawl" / name).write_bytes(data)
    for location in ("crawl", "crawl/*.html", "crawl/a.html"):
        there, here = listing.inventory(bucket.uri(location), tmp_path), listing.inventory(location, tmp_path)
        assert [(file.name, file.bytes, file.sha256) for file in there] == [
            (file.name, file.bytes, file.sha256) for file in here
        ]
    for file in listing.inventory(bucket.uri("crawl"), tmp_path):
        with opened(file) as stream:
            assert stream.read() == FILES[file.name]


def test_more_objects_than_one_page_of_a_listing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for number in range(25):
        bucket.put(f"many/{number:04d}", b"")
    page = bucket.client.list_objects_v2(Bucket=bucket.name)
    assert page["IsTruncated"]
    assert len(listing.listing(bucket.uri("many"), tmp_path)) == 25


def test_new_objects_are_seen_by_the_same_process(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("crawl/a", b"1")
    assert [row[0] for row in listing.listing(bucket.uri("crawl"), tmp_path)] == ["a"]
    bucket.put("crawl/b", b"2")
    bucket.put("crawl/a", b"3")
    found = listing.listing(bucket.uri("crawl"), tmp_path)
    assert [row[0] for row in found] == ["a", "b"]
    assert len({mark for _, _, mark in found}) == 2
    assert [file.bytes for file in listing.inventory(bucket.uri("crawl"), tmp_path)] == [1, 1]


def test_only_new_objects_are_downloaded(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put_in_parts("crawl/large", noise(11 * 2**20))
    bucket.put("crawl/small", b"small")
    memory = DigestMemory(tmp_path / "memory")
    first = listing.inventory(bucket.uri("crawl"), tmp_path, memory=memory)
    fetched: list[str] = []
    real = listing._file_digests
    monkeypatch.setattr(listing, "_file_digests", lambda entry: fetched.append(entry.uri) or real(entry))
    assert listing.inventory(bucket.uri("crawl"), tmp_path, memory=memory) == first
    assert fetched == []
    bucket.put("crawl/small", b"SMALL")
    changed = listing.inventory(bucket.uri("crawl"), tmp_path, memory=memory)
    assert fetched == [bucket.uri("crawl/small")]
    assert [one.sha256 == other.sha256 for one, other in zip(first, changed, strict=True)] == [True, False]


@pytest.mark.parametrize("other", [b"B" * 100, b"B" * 99])
def test_an_object_that_changed_since_the_inventory_is_refused(bucket: Bucket, tmp_path: Path, other: bytes) -> None:
    bucket.put("crawl/a", b"A" * 100)
    (file,) = listing.inventory(bucket.uri("crawl"), tmp_path)
    bucket.put("crawl/a", other)
    with pytest.raises(IntegrityError, match="changed while it was being read"), opened(file) as stream:
        stream.read()


@pytest.mark.parametrize("change", ["replace", "remove"])
def test_an_object_that_changes_or_goes_while_it_is_read_is_refused(
    bucket: Bucket, tmp_path: Path, change: str
) -> None:
    data = noise(12 * 2**20)
    bucket.put("crawl/a", data)
    (file,) = listing.inventory(bucket.uri("crawl"), tmp_path)

    def read_slowly() -> None:
        with opened(file) as stream:
            assert stream.read(1000) == data[:1000]
            if change == "replace":
                bucket.put("crawl/a", data[::-1])
            else:
                bucket.client.delete_object(Bucket=bucket.name, Key="crawl/a")

    with pytest.raises(PlinthError, match="crawl/a"):
        read_slowly()


def test_a_line_that_breaks_now_and_then_costs_nothing(bucket: Bucket, tmp_path: Path) -> None:
    data = noise(9 * 2**20)
    bucket.put_in_parts("crawl/a", data)
    (expected,) = listing.inventory(bucket.uri("crawl"), tmp_path)
    with bad_line(bucket.endpoint, after_bytes=2**20, failures=2) as line:
        assert listing.inventory(bucket.uri("crawl"), tmp_path) == [expected]
        assert line.cuts == 2


def test_a_line_that_always_breaks_is_a_named_error_after_bounded_attempts(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("crawl/a", noise(4 * 2**20))
    (file,) = listing.inventory(bucket.uri("crawl"), tmp_path)
    with bad_line(bucket.endpoint, after_bytes=2**20, failures=10_000) as line:
        with pytest.raises(SourceError, match=r"cannot read s3://.*/crawl/a"), opened(file) as stream:
            stream.read()
        assert 1 < line.cuts < 50


def test_no_such_bucket_and_no_right_are_named(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no-such-bucket"):
        listing.inventory("s3://no-such-bucket/crawl", tmp_path)
    with pytest.raises(SourceError, match="no file matches"):
        listing.inventory(bucket.uri("nothing-here"), tmp_path)
