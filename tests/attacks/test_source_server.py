"""Attack: the server of a source leads the reader to other servers, or to this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plinth.errors import SourceError
from plinth.storage import http, listing
from plinth.storage.files import opened
from tests.crawl_server import CrawlServer, crawl_server

Served = tuple[CrawlServer, str]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(http, "BACKOFF_S", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    http._session.cache_clear()
    (tmp_path / "terms.html").write_bytes(b"text")
    with crawl_server(tmp_path) as (server, address):
        yield server, address
    http._session.cache_clear()


def test_a_redirect_within_the_server_gives_the_final_address(served: Served, tmp_path: Path) -> None:
    server, address = served
    server.moved = {"/first.html": "/second.html", "/second.html": f"{address}/terms.html"}
    (file,) = listing.inventory(f"{address}/first.html", tmp_path)
    assert (file.uri, file.name) == (f"{address}/terms.html", "terms.html")
    with opened(file) as stream:
        assert stream.read() == b"text"


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost:{port}/terms.html",
        "http://127.0.0.1:1/terms.html",
        "http://169.254.169.254/latest/meta-data",
        "//example.org/terms.html",
        "https://127.0.0.1:{port}/terms.html",
        "file:///etc/passwd",
        "ftp://127.0.0.1/terms.html",
    ],
)
def test_a_redirect_to_another_server_or_scheme_is_refused(served: Served, tmp_path: Path, target: str) -> None:
    server, address = served
    server.moved = {"/first.html": target.format(port=address.rpartition(":")[2])}
    with pytest.raises(SourceError, match="redirects to another server") as caught:
        listing.inventory(f"{address}/first.html", tmp_path)
    assert "set that address as the source's `path`" in str(caught.value)
    with pytest.raises(SourceError, match="redirects to another server"):
        http.get(f"{address}/first.html")


def test_a_file_that_redirects_after_it_was_listed_is_refused(served: Served, tmp_path: Path) -> None:
    server, address = served
    (file,) = listing.inventory(f"{address}/terms.html", tmp_path)
    server.moved = {"/terms.html": "http://example.org/terms.html"}
    with pytest.raises(SourceError, match="redirects to another server"), opened(file) as stream:
        stream.read()


def test_redirects_that_never_end_are_a_failure(served: Served) -> None:
    server, address = served
    server.moved = {"/a": "/b", "/b": "/a"}
    with pytest.raises(OSError, match="more than 10 redirects"):
        http.get(f"{address}/a")


@pytest.mark.parametrize("closes", [False, True])
def test_a_name_that_leads_to_this_machine_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Its owner can let it resolve to anything, at any moment; an answer that ends its connection has no socket."""
    server, address = served
    server.lengths = not closes
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == "crawl.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    named = address.replace("127.0.0.1", "crawl.example")
    with pytest.raises(SourceError, match="resolves to an address of this machine or to a link-local") as caught:
        http.get(f"{named}/terms.html")
    assert "crawl.example is 127.0.0.1" in str(caught.value)
    with pytest.raises(SourceError, match="resolves to an address of this machine or to a link-local"):
        http.get(f"{named.replace('http:', 'https:')}/terms.html")
    assert server.requests == []
    assert http.get(f"{address}/terms.html") == b"text"  # named as such


OWN = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries
       if entry.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip


@pytest.mark.parametrize(
    "peer", ["127.8.8.8", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1%lo", "0.0.0.0", "::", *OWN]
)
def test_every_address_of_this_machine_and_its_link_needs_its_own_name(peer: str) -> None:
    with pytest.raises(SourceError, match="resolves to an address of this machine or to a link-local"):
        http._require_outside("crawl.example", peer)
    http._require_outside(peer, peer)


@pytest.mark.parametrize("peer", ["198.51.100.7", "10.77.88.99", "2001:db8::7", "::ffff:198.51.100.7"])
def test_other_addresses_are_read(peer: str) -> None:
    http._require_outside("crawl.example", peer)
