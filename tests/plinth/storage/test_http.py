"""Files of web servers: ranges, busy servers, lines that break, files that change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.errors import IntegrityError, SourceError
from plinth.storage import http, listing
from plinth.storage.files import opened
from tests.crawl_server import CrawlServer, crawl_server

DATA = random.Random(1).randbytes(1_000_000)
Served = tuple[CrawlServer, str]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(http, "BACKOFF_S", 0.0)
    http._session.cache_clear()
    (tmp_path / "a b.bin").write_bytes(DATA)
    with crawl_server(tmp_path) as (server, address):
        yield server, f"{address}/a%20b.bin"
    http._session.cache_clear()


def read(url: str, block: int = 1 << 30) -> bytes:
    with http.HttpFiles().open(url, block_size=block) as stream:
        return stream.read()


def test_a_file_is_read_in_blocks_and_from_any_byte(served: Served) -> None:
    server, url = served
    assert read(url, 300_000) == DATA
    assert [one[2] for one in server.requests[1:]] == [
        *("bytes=0-299999", "bytes=300000-599999", "bytes=600000-899999", "bytes=900000-999999"),
    ]
    with http.HttpFiles().open(url) as stream:
        stream.seek(999_990)
        assert stream.read(5) == DATA[999_990:999_995]
        stream.seek(3)
        assert stream.read(5) == DATA[3:8]


def test_what_breaks_off_is_continued_where_it_broke(served: Served) -> None:
    server, url = served
    server.cuts, server.cut_after = 3, 300_000
    assert read(url) == DATA
    starts = [int(one[2].removeprefix("bytes=").partition("-")[0]) for one in server.requests[1:]]
    assert len(starts) == 4
    assert starts == sorted(set(starts))


def test_a_busy_server_is_asked_again_and_not_for_ever(served: Served) -> None:
    server, url = served
    server.busy = 3
    assert read(url) == DATA
    server.busy = 1000
    with pytest.raises(OSError, match="responded 503"):
        read(url)
    server.busy, server.cuts, server.cut_after = 0, 20, 1  # each answer brings a byte, so none counts as a failure
    assert read(url) == DATA


def test_a_server_without_ranges(served: Served) -> None:
    server, url = served
    server.ranges = False
    assert read(url, 400_000) == DATA


def test_a_file_that_changes_or_is_not_there_is_named(served: Served, tmp_path: Path) -> None:
    server, url = served
    (file,) = listing.inventory(url, tmp_path)
    assert file.name == "a%20b.bin"
    with opened(file) as stream:
        assert stream.read() == DATA
    with opened(file) as stream:
        server.tag = '"2"'
        with pytest.raises(IntegrityError, match="changed while it was being read"):
            stream.read()
        server.tag = '"1"'
    with pytest.raises(SourceError, match="cannot list"):
        listing.inventory(f"{url}-not", tmp_path)


def test_a_file_of_unknown_length_is_no_empty_file(served: Served, tmp_path: Path) -> None:
    server, url = served
    server.lengths = False
    with pytest.raises(SourceError, match="reports no length"):
        listing.inventory(url, tmp_path)
