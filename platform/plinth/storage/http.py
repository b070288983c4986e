"""File systems for `https://` and `cc://`: files by address, read in ranges, with retries.

A failed request, or one answered with 429 or 5xx, is retried: at once, then after 2, 4, 8 … seconds, or after
`Retry-After`. An interrupted response is resumed. A file whose entity tag changed after opening is refused. For servers
without ranges, the bytes before a block are fetched again.

Redirects are followed only within the scheme, host and port of the recipe's address, because the source's license and
terms apply to that server. The file is recorded under its final address. Hosts that resolve to this machine or its
network link are refused.
"""

from __future__ import annotations

import gzip
import io
import ipaddress
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urljoin, urlsplit

import fsspec
import psutil
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from plinth.errors import SourceError
from plinth.storage.atomic import relative
from plinth.text import is_address

ATTEMPTS, BACKOFF_S, TIMEOUT_S = 6, 1.0, 60.0
#: Redirects followed for one request.
REDIRECTS = 10
BUSY = (429, 500, 502, 503, 504)
BLOCK_BYTES = 8 * 2**20
CHUNK_BYTES = 1 << 18


class ChangedError(OSError):
    """The file changed after it was opened."""


class HttpFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """File system for single addresses; folders cannot be listed."""

    protocol = ("http", "https")
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        """Return the address itself."""
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return length, entity tag and final address.

        Raises:
            FileNotFoundError, OSError: the server has no such file, does not answer, or does not report the length.
                Without a length, a truncated file would look complete.
        """
        with _request("HEAD", path) as found:
            tag = found.headers.get("ETag") or found.headers.get("Last-Modified") or ""
            length = found.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise OSError(f"{path}: the server reports no length (no Content-Length)")
            return {"name": path, "uri": found.url, "size": int(length), "type": "file", "ETag": tag.strip('"')}

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        """Return the file itself, by its final address."""
        info = self.info(path)
        found = {info["uri"]: info}
        return found if detail else list(found)

    def open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> io.BufferedReader:
        """Open a file for reading, with `block_size` bytes per request."""
        if mode != "rb":
            raise OSError("files of a web server are read-only")
        return io.BufferedReader(HttpStream(path, self.info(path), block_size or BLOCK_BYTES), CHUNK_BYTES)


class HttpStream(io.RawIOBase):
    """File of a web server that can be read from any byte.

    Args:
        url, info: address and metadata of the file, from `HttpFiles.info`.
        block_bytes: bytes per request.
    """

    def __init__(self, url: str, info: dict[str, Any], block_bytes: int) -> None:
        self._url, self._size, self._tag, self._block = url, info["size"], info["ETag"], block_bytes
        self._position, self._held = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset != self._position:
            self._position, self._held = start + offset, memoryview(b"")
        return self._position

    def readinto(self, buffer: Any) -> int:
        if not self._held and self._position < self._size:
            self._held = memoryview(self._fetch(min(self._size, self._position + self._block)))
        taken = min(len(buffer), len(self._held))
        buffer[:taken] = self._held[:taken]
        self._held, self._position = self._held[taken:], self._position + taken
        return taken

    def _fetch(self, end: int) -> bytes:
        """Return the bytes from the position up to `end`. If an answer is interrupted, its bytes are kept."""
        found, failures = bytearray(), 0
        while self._position + len(found) < end:
            had = len(found)
            try:
                for data in self._range(self._position + had, end):
                    found += data
            except (requests.RequestException, HTTPError) as error:
                failures = 0 if len(found) > had else failures + 1
                if failures == ATTEMPTS:
                    raise OSError(f"{self._url}: {error}") from error
                time.sleep(BACKOFF_S * 2**failures if failures else 0)
                continue
            if len(found) == had:
                raise OSError(f"{self._url} ends at byte {self._position + had} of {self._size}")
        return bytes(found)

    def _range(self, start: int, end: int) -> Iterator[bytes]:
        with _request("GET", self._url, {"Range": f"bytes={start}-{end - 1}"}) as found:
            tag = (found.headers.get("ETag") or found.headers.get("Last-Modified") or "").strip('"')
            if tag != self._tag:
                raise ChangedError(f"{self._url} changed: entity tag {tag}, opened with {self._tag}")
            skip = start if found.status_code == 200 else 0  # a server without ranges starts at byte 0
            left = end - start
            # `read1` returns received bytes: `iter_content` would lose the last piece of an interrupted response.
            while received := found.raw.read1(CHUNK_BYTES, decode_content=False):
                data, skip = received[skip:], max(0, skip - len(received))
                yield data[:left]
                left -= len(data[:left])
                if not left:
                    return


def serves(uri: str) -> bool:
    """Return True if a URI is the address of a web server."""
    return uri.startswith(("http://", "https://"))


def get(url: str) -> bytes:
    """Download a small file.

    Raises:
        FileNotFoundError, OSError: the server has no such file, or does not answer.
    """
    with _request("GET", url) as found:
        try:
            return found.content
        except requests.RequestException as error:
            raise OSError(f"{url}: {error}") from error


def _request(method: str, url: str, headers: dict[str, str] | None = None) -> requests.Response:
    """Send a request; return the successful response with an unread body. The response's `url` is the final address.

    Raises:
        SourceError: a redirect leaves the server, or its name leads to this machine.
    """
    wanted, at = {"Accept-Encoding": "identity", **(headers or {})}, url
    for _ in range(REDIRECTS + 1):
        try:
            found = _session().request(
                method, at, headers=wanted, timeout=TIMEOUT_S, stream=True, allow_redirects=False
            )
        except requests.RequestException as error:
            raise OSError(f"{url}: {error}") from error
        if not found.is_redirect:
            found.url = at
            break
        found.close()
        at = _same_server(url, urljoin(at, found.headers["Location"]))
    else:
        raise OSError(f"{url}: more than {REDIRECTS} redirects")
    if found.status_code in (404, 410):
        raise FileNotFoundError(url)
    if found.status_code not in (200, 206):
        raise OSError(f"{url}: the server responded {found.status_code} {found.reason}")
    return found


def _same_server(url: str, target: str) -> str:
    """Return the target of a redirect, if it stays at the server of `url`."""
    if _server(target) != _server(url):
        raise SourceError(
            f"{url} redirects to another server",
            found=target,
            expected="an address with the same scheme, host and port",
            remedy="if the license and terms of the source apply there, set that address as the source's `path`",
        )
    return target


def _server(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _require_outside(host: str, peer: str) -> None:
    """Refuse a connection to this machine or its network link (cloud metadata) under the name of another host."""
    if host == "localhost" or is_address(host) or not _is_own(peer):
        return
    raise SourceError(
        f"{host} resolves to an address of this machine or to a link-local address",
        found=f"{host} is {peer}",
        expected="a server elsewhere",
        remedy="if this access is intended, use the numeric address as the source's `path`",
    )


def _is_own(address: str) -> bool:
    """Return True if an IP address belongs to this machine or its network link."""
    ip = _ip(address)
    own = {_ip(entry.address) for entries in psutil.net_if_addrs().values() for entry in entries
           if entry.family in (socket.AF_INET, socket.AF_INET6)}  # fmt: skip
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip in own


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an IP address without its interface; an IPv4 address that is mapped into IPv6 is returned as IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


class OutsideConnection(HTTPConnection):
    """HTTP connection that checks the peer's address before it sends anything, because a name can resolve to another
    address at any time."""

    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        try:
            _require_outside(self.host, str(made.getpeername()[0]))
        except BaseException:
            made.close()
            raise
        return made


class OutsideTlsConnection(OutsideConnection, HTTPSConnection):
    """TLS connection that checks the peer's address before it sends anything."""


class OutsidePool(HTTPConnectionPool):
    """Checked connections to a host."""

    ConnectionCls = OutsideConnection


class OutsideTlsPool(HTTPSConnectionPool):
    """Checked TLS connections to a host."""

    ConnectionCls = OutsideTlsConnection


class OutsideAdapter(HTTPAdapter):
    """Adapter that checks the peer of each connection, except connections to a proxy, which the operator chose."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": OutsidePool, "https": OutsideTlsPool}


@lru_cache(maxsize=1)
def _session() -> requests.Session:
    retry = Retry(
        ATTEMPTS,
        backoff_factor=BACKOFF_S,
        status_forcelist=BUSY,
        allowed_methods=("HEAD", "GET"),
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, OutsideAdapter(max_retries=retry, pool_maxsize=16))
    return session


# `cc://CRAWL?…`: files of a crawl in Common Crawl's layout, or the records listed by its index.
#
#     cc://CC-MAIN-2024-10?kind=wet&limit=8                 the first files of `crawl-data/CC-MAIN-2024-10/wet.paths.gz`
#     cc://CC-MAIN-2024-10?kind=warc&first=100&limit=50     a range of them
#     cc://CC-MAIN-2024-10?url=*.example.org                records of the index, each read alone (`filter`, `limit`)
#
# `base` is the location of the files (an `https://` address, an `s3://` prefix or a folder with the same paths),
# `index` the address of the index. Names are the paths below `base`, so a copy elsewhere has the same identity.

BASE, INDEX = "https://data.commoncrawl.org", "https://index.commoncrawl.org"
KINDS = ("warc", "wet", "wat")
#: Filters of the index: pages without a successful response are skipped.
FILTER = "=status:200"
MAX_LIST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Query:
    """Query in a `cc://` address of Common Crawl.

    Args:
        crawl: name of the crawl, such as `CC-MAIN-2024-10`.
        kind: kind of the files.
        first, limit: range of the files, or of the records of the index; a limit of 0 means none.
        url, filters: query of the index; without `url`, whole files are read.
        base, index: locations of files and index.
    """

    crawl: str
    kind: str = KINDS[0]
    first: int = 0
    limit: int = 0
    url: str = ""
    filters: tuple[str, ...] = (FILTER,)
    base: str = BASE
    index: str = INDEX


class CommonCrawl(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Files of a crawl by path below its base; each is read from its own location (`uri`)."""

    protocol = ("cc",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def find(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Return `name` and `uri` of every file or record. Records also have `start` and `size`; sizes of whole files
        are unknown."""
        query = parse(path)
        found = {one.pop("key"): one for one in (_records(query) if query.url else _files(query))}
        return found if detail else list(found)


def parse(location: str) -> Query:
    """Return the query in a `cc://` address.

    Raises:
        SourceError: the address has unknown or wrong parts.
    """
    parts = urlsplit(location)
    given = parse_qs(parts.query, keep_blank_values=True)
    wrong = sorted(set(given) - {"kind", "first", "limit", "url", "filter", "base", "index"})
    single = {name: values[-1] for name, values in given.items()}
    numbers = {name: single[name] for name in ("first", "limit") if name in single}
    wrong += [f"{name}={text}" for name, text in numbers.items() if not text.isdecimal()]
    wrong += [f"kind={single['kind']}"] if single.get("kind", "warc") not in KINDS else []
    wrong += ["kind and url (the index lists records of WARC files)"] if {"kind", "url"} <= set(single) else []
    if wrong or not parts.netloc or parts.path.strip("/"):
        raise SourceError(
            f"{location} is not the address of a crawl",
            found=", ".join(wrong) or "no name of a crawl, or a path after the name",
            expected="cc://CC-MAIN-2024-10?kind=warc|wet|wat&first=N&limit=N, or ?url=*.example.org&filter=…&limit=N; "
            "base=… and index=… set the locations of files and index",
            remedy="correct the source's `path` in the recipe",
        )
    return Query(
        parts.netloc,
        kind=single.get("kind", KINDS[0]),
        first=int(single.get("first", 0)),
        limit=int(single.get("limit", 0)),
        url=single.get("url", ""),
        filters=tuple(given.get("filter", (FILTER,))),
        base=single.get("base", BASE).rstrip("/"),
        index=single.get("index", INDEX).rstrip("/"),
    )


def _files(query: Query) -> Iterator[dict[str, Any]]:
    """Yield the files of the crawl's own list."""
    listed = f"crawl-data/{query.crawl}/{query.kind}.paths.gz"
    with gzip.open(io.BytesIO(_read(f"{query.base}/{listed}"))) as lines:
        paths = lines.read(MAX_LIST_BYTES).decode().split()
    for path in paths[query.first : query.first + query.limit if query.limit else None]:
        yield {"key": path, **_entry(query, path), "size": None}


def _records(query: Query) -> Iterator[dict[str, Any]]:
    """Yield each record of the index once, page by page."""
    number, address = 0, f"{query.index}/{query.crawl}-index"
    asked = [("url", query.url), ("output", "json"), *(("filter", one) for one in query.filters)]
    try:
        pages = json.loads(get(f"{address}?{urlencode([*asked, ('showNumPages', 'true')])}"))["pages"]
        for page in range(pages):
            for line in get(f"{address}?{urlencode([*asked, ('page', page)])}").splitlines():
                number += 1
                if number <= query.first:
                    continue
                if query.limit and number > query.first + query.limit:
                    return
                told = json.loads(line)
                start, size = int(told["offset"]), int(told["length"])
                key = f"{told['filename']}@{start}"
                place = {"start": start, "size": size, "ETag": str(told.get("digest", ""))}
                yield {"key": key, **_entry(query, told["filename"]), **place}
    except FileNotFoundError:  # "No Captures found"
        return


def _entry(query: Query, path: str) -> dict[str, Any]:
    """Return the name and URI of a file, from a path in an untrusted list or index."""
    relative(path, f"the list of {query.crawl}", error=SourceError)
    return {"name": path, "uri": f"{query.base}/{quote(path) if serves(query.base) else path}", "type": "file"}


def _read(uri: str) -> bytes:
    if serves(uri):
        return get(uri)
    with fsspec.open(uri, "rb") as stream:
        data: bytes = stream.read()
    return data
