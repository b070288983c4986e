"""`cc://CRAWL?…`: the files of a crawl as Common Crawl lays them out, or the records that its index names.

    cc://CC-MAIN-2024-10?kind=wet&limit=8                 the first files of `crawl-data/CC-MAIN-2024-10/wet.paths.gz`
    cc://CC-MAIN-2024-10?kind=warc&first=100&limit=50     others of them
    cc://CC-MAIN-2024-10?url=*.example.org                records of the index, each read by itself (`filter`, `limit`)

`base` is where the files lie (an `https://` address, an `s3://` prefix or a folder with the same paths), `index` the
address of the index. Names are the paths below `base`, so a copy elsewhere has the same identity.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import fsspec

from plinth.errors import SourceError
from plinth.storage import http
from plinth.storage.safe_path import relative

BASE, INDEX = "https://data.commoncrawl.org", "https://index.commoncrawl.org"
KINDS = ("warc", "wet", "wat")
#: Of the index: pages that are no answer of a site that was there are left out.
FILTER = "=status:200"
MAX_LIST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Query:
    """What an address asks for.

    Args:
        crawl: such as `CC-MAIN-2024-10`.
        kind: of the files.
        first, limit: of the files, or of the records of the index; a limit of 0 is none.
        url, filters: for the index; no `url`: whole files.
        base, index: where files and index lie.
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
    """What an address names, by path below its base; the files themselves are read where they lie (`uri`)."""

    protocol = ("cc",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def find(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Of every file or record: its `name`, `uri`, and of a record `start` and `size`; other sizes are not known."""
        query = parse(path)
        found = {one.pop("key"): one for one in (_records(query) if query.url else _files(query))}
        return found if detail else list(found)


def parse(location: str) -> Query:
    """The query of an address.

    Raises:
        SourceError: it has unknown or wrong parts.
    """
    parts = urlsplit(location)
    given = parse_qs(parts.query, keep_blank_values=True)
    wrong = sorted(set(given) - {"kind", "first", "limit", "url", "filter", "base", "index"})
    single = {name: values[-1] for name, values in given.items()}
    numbers = {name: single[name] for name in ("first", "limit") if name in single}
    wrong += [f"{name}={text}" for name, text in numbers.items() if not text.isdecimal()]
    wrong += [f"kind={single['kind']}"] if single.get("kind", "warc") not in KINDS else []
    wrong += ["kind beside url: the index names records of WARC files"] if {"kind", "url"} <= set(single) else []
    if wrong or not parts.netloc or parts.path.strip("/"):
        raise SourceError(
            f"{location} is no address of a crawl",
            found=", ".join(wrong) or "no crawl, or a path after it",
            expected="cc://CC-MAIN-2024-10?kind=warc|wet|wat&first=N&limit=N, or ?url=*.example.org&filter=…&limit=N; "
            "base=… and index=… say where it lies",
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
    """Files of the crawl's own list."""
    listed = f"crawl-data/{query.crawl}/{query.kind}.paths.gz"
    with gzip.open(io.BytesIO(_read(f"{query.base}/{listed}"))) as lines:
        paths = lines.read(MAX_LIST_BYTES).decode().split()
    for path in paths[query.first : query.first + query.limit if query.limit else None]:
        yield {"key": path, **_entry(query, path), "size": None}


def _records(query: Query) -> Iterator[dict[str, Any]]:
    """Records of the index, page by page, each once."""
    number, address = 0, f"{query.index}/{query.crawl}-index"
    asked = [("url", query.url), ("output", "json"), *(("filter", one) for one in query.filters)]
    try:
        pages = json.loads(http.get(f"{address}?{urlencode([*asked, ('showNumPages', 'true')])}"))["pages"]
        for page in range(pages):
            for line in http.get(f"{address}?{urlencode([*asked, ('page', page)])}").splitlines():
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
    """A path of a list or an index, which somebody else has written."""
    relative(path, f"the list of {query.crawl}", error=SourceError)
    return {"name": path, "uri": f"{query.base}/{quote(path) if http.serves(query.base) else path}", "type": "file"}


def _read(uri: str) -> bytes:
    if http.serves(uri):
        return http.get(uri)
    with fsspec.open(uri, "rb") as stream:
        data: bytes = stream.read()
    return data
