"""Common Crawl by crawl and list, and by its index, from a server with the same paths."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.corpus.sources.record import RawRecord, Reject, read
from plinth.errors import SourceError
from plinth.storage import http, listing
from plinth.storage.files import DigestMemory
from plinth.storage.listing import inventory as files_at
from tests.crawl_server import CrawlServer, crawl_server
from tests.plinth.corpus.sources.conftest import make_source
from tests.s3_server import serving

CRAWL = "CC-MAIN-2024-10"
FOLDER = f"crawl-data/{CRAWL}/segments/1/warc"
Served = tuple[CrawlServer, str]


@pytest.fixture
def served(tmp_path: Path, warc_record: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Three files of two records each, their list, and an index of all of them and of one that was not found."""
    monkeypatch.setattr(http, "BACKOFF_S", 0.0)
    http._session.cache_clear()
    root, index = tmp_path / "mirror", []
    (root / FOLDER).mkdir(parents=True)
    for number in range(3):
        data = b""
        for name, status in ((f"{number}-a", 200), (f"{number}-b", 404 if number == 2 else 200)):
            record = gzip.compress(warc_record(name, f"<p>Page {name}.</p>".encode(), status=status), mtime=0)
            place = {"filename": f"{FOLDER}/{number}.warc.gz", "offset": str(len(data)), "length": str(len(record))}
            index.append({"url": f"https://example.org/{name}", "status": str(status), "digest": name, **place})
            data += record
        (root / FOLDER / f"{number}.warc.gz").write_bytes(data)
    names = [f"{FOLDER}/{number}.warc.gz" for number in range(3)]
    (root / f"crawl-data/{CRAWL}/warc.paths.gz").write_bytes(gzip.compress("\n".join(names).encode() + b"\n"))
    with crawl_server(root) as (server, address):
        server.index = index
        yield server, address
    http._session.cache_clear()


def source(path: str) -> Source:
    return make_source("warc", path=path)


def pages(path: str, base: Path) -> list[str]:
    """Addresses of the pages that an inventory of the source holds."""
    found: list[RawRecord | Reject] = []
    listed = inventory(Bucket(description="x", owner="x", sources=(source(path),)), base)
    for file in listed.of(0):
        found += [item for piece in file.split() for item in read(piece, source(path), "MIT", 1 << 20)]
    return [item.uri.rsplit("/", 1)[1] for item in found if isinstance(item, RawRecord)]


def test_files_of_a_crawl_by_its_list(served: Served, tmp_path: Path) -> None:
    _, address = served
    base = f"cc://{CRAWL}?base={address}"
    assert pages(base, tmp_path) == ["0-a", "0-b", "1-a", "1-b", "2-a"]
    assert pages(f"{base}&first=1&limit=1", tmp_path) == ["1-a", "1-b"]
    names = [file.name for file in files_at(base, tmp_path, (".warc.gz",))]
    assert names == [f"{FOLDER}/{number}.warc.gz" for number in range(3)]
    assert listing.listing(base, tmp_path, sized=False) == [[name, None, ""] for name in names]


def test_a_copy_elsewhere_is_the_same_source(served: Served, tmp_path: Path) -> None:
    _, address = served
    found = [files_at(f"cc://{CRAWL}?base={base}", tmp_path) for base in (address, tmp_path / "mirror")]
    same = [[(file.name, file.sha256, file.bytes) for file in files] for files in found]
    assert same[0] == same[1]
    assert pages(f"cc://{CRAWL}?base={tmp_path / 'mirror'}&limit=1", tmp_path) == ["0-a", "0-b"]


def test_a_copy_on_s3(served: Served, tmp_path: Path) -> None:
    _, address = served
    with serving() as bucket:
        for path in (tmp_path / "mirror").rglob("*.gz"):
            bucket.put(f"mirror/{path.relative_to(tmp_path / 'mirror')}", path.read_bytes())
        base = f"base={bucket.uri('mirror')}"
        assert pages(f"cc://{CRAWL}?first=1&limit=1&{base}", tmp_path) == ["1-a", "1-b"]
        assert pages(f"cc://{CRAWL}?url=example.org&limit=3&index={address}&{base}", tmp_path) == ["0-a", "0-b", "1-a"]


def test_records_by_the_index_are_read_alone(served: Served, tmp_path: Path) -> None:
    server, address = served
    query = f"cc://{CRAWL}?url=*.example.org&base={address}&index={address}"
    assert pages(query, tmp_path) == ["0-a", "0-b", "1-a", "1-b", "2-a"]
    ranges = [one[2] for one in server.requests if one[2]]
    expected = {f"bytes={one['offset']}-{int(one['offset']) + int(one['length']) - 1}" for one in server.index[:5]}
    assert set(ranges) == expected
    assert len(ranges) == 2 * 5  # hashed, then read; as with every remote source
    assert pages(f"{query}&first=1&limit=3", tmp_path) == ["0-b", "1-a", "1-b"]
    assert pages(f"{query}&filter==status:404", tmp_path) == []
    with pytest.raises(SourceError, match="no file matches"):
        pages(query.replace("example.org", "nobody.example"), tmp_path)


def test_what_is_known_is_not_fetched_again(served: Served, tmp_path: Path) -> None:
    server, address = served
    memory = DigestMemory(tmp_path / "memory.sqlite")
    for query in (f"cc://{CRAWL}?base={address}", f"cc://{CRAWL}?url=example.org&base={address}&index={address}"):
        first = files_at(query, tmp_path, memory=memory)
        server.requests.clear()
        assert files_at(query, tmp_path, memory=memory) == first
        assert not [one for one in server.requests if one[2]]


@pytest.mark.parametrize("path", ["?limit=x", "?kind=cdx", "?page=1", "/x", "?url=a&kind=wet"])
def test_a_wrong_address_is_named(tmp_path: Path, path: str) -> None:
    with pytest.raises(SourceError, match="is not the address of a crawl"):
        files_at(f"cc://{CRAWL}{path}", tmp_path)


@pytest.mark.parametrize("name", ["../secret.warc.gz", "/etc/secret.warc.gz"])
def test_a_list_or_index_leads_nowhere_else(served: Served, tmp_path: Path, name: str) -> None:
    server, address = served
    server.index = [json.loads(json.dumps({**server.index[0], "filename": name}))]
    with pytest.raises(SourceError, match="is outside of its directory"):
        files_at(f"cc://{CRAWL}?url=example.org&base={address}&index={address}", tmp_path)
