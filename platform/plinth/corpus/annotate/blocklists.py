"""Checks of documents against lists: blocked domains and URLs, words in URLs, reputation of hosts, illegal content."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import TABLES, Annotator, Files
from plinth.corpus.exclusions import address
from plinth.corpus.illegal import ListHit, Matcher, media_of, read
from plinth.corpus.lists import Counts, ListTable, by_role, parsed, refused
from plinth.corpus.sources.parameters import Matching
from plinth.records import Frozen, internal
from plinth.text import domain, domains, host

# Rules on the address of a document: blocked domains and addresses, words in the address, reputation, pages of lists.
#
# RefinedWeb (Penedo et al. 2023, section G.1) blocks listed domains, and pages whose address contains a strictly banned
# substring, one hard word, or two soft words. datatrove publishes the rules; unlike datatrove, this code ignores case.
# The user supplies the lists as files of one resource; the start of a file's name selects its kind.
#
#     domains…      host names, in Unicode or punycode; each covers its subdomains
#     urls…         whole addresses, compared in normal form (`exclusions.addresses`)
#     hard_words…   whole words of the address
#     soft_words…   whole words of the address; a single match is often harmless
#     sub_words…    sequences of letters and digits, matched anywhere in the address with punctuation ignored
#     reputation…   lines of host name, tab, number from 0 (spam) to 1 (trusted); the longest listed suffix of a host
#                   applies

_LOG = logging.getLogger(__name__)

URL_SCHEMA = pa.schema(
    [
        pa.field("blocked_domain", pa.bool_(), nullable=False),
        pa.field("blocked_url", pa.bool_(), nullable=False),
        pa.field("hard_words", pa.int16(), nullable=False),
        pa.field("soft_words", pa.int16(), nullable=False),
        pa.field("sub_words", pa.int16(), nullable=False),
        pa.field("reputation", pa.float32()),  # null for unlisted hosts
        pa.field("list", pa.string()),  # file of the first rule that matches, for the audit trail
        pa.field("listing", pa.bool_(), nullable=False),
    ]
)
#: Addresses of pages that list articles: of a tag, an author, a month, in the forms of WordPress.
LISTING = re.compile(
    r"""(?: /page/?\d+ | /(?:tags?|category|categories|authors?|label)/[^/?#]+ | /(?:19|20)\d\d(?:/\d\d?){0,2} )
        /? (?:index\.\w+)? (?:[?#].*)? $ | [?&](?:paged|cat|tag)=[^&]* $""",
    re.IGNORECASE | re.VERBOSE,
)
ROLES = ("domains", "urls", "hard_words", "soft_words", "sub_words", "reputation")
SPLIT = re.compile(r"[^a-z0-9]+")
#: Minimum length of a substring; shorter ones match half of all addresses.
MIN_SUB_WORD = 3


class UrlParams(Frozen):
    """Parameters of the annotator `url`: the lists to match, and the threshold for soft words."""

    lists: str = Field(description="Name of the lists in `corpus.lists`.")
    soft_threshold: int = internal(
        2,
        ge=1,
        description="Minimum number of soft words in an address; if reached, `list` names the file with the words.",
    )


@dataclass
class Rules:
    """Lists of hosts, addresses and words, ready for lookup; each value is the name of the file that contains the
    entry."""

    soft_threshold: int
    domains: ListTable
    urls: ListTable
    reputation: ListTable
    hard_words: dict[str, str] = field(default_factory=dict)
    soft_words: dict[str, str] = field(default_factory=dict)
    sub_words: dict[str, str] = field(default_factory=dict)
    pieces: re.Pattern[str] | None = None


def tables_url(params: UrlParams, files: Files) -> dict[str, ListTable]:
    """Return the lists of hosts and URLs as tables. Worker processes share the tables because lists may have millions
    of entries.

    Raises:
        SourceError: a file is not a list, or has too many malformed lines.
    """
    named = by_role(files[f"lists/{params.lists}"], ROLES)
    counts: dict[str, Counts] = {}

    def from_files(role: str, read: Callable[[str], str]) -> Iterator[tuple[str, str]]:
        for name, path in named[role]:
            yield from ((entry, name) for entry in parsed(name, path, read, counts))

    def scores() -> Iterator[tuple[str, float]]:
        for name, path in named["reputation"]:
            yield from parsed(name, path, _score, counts)

    source = pa.dictionary(pa.int16(), pa.string())
    made = {
        "domains": ListTable.of(from_files("domains", domain), source),
        "urls": ListTable.of(from_files("urls", address), source),
        "reputation": ListTable.of(scores(), pa.float32()),
    }
    for name, one in counts.items():
        if one.bad:
            _LOG.warning("list %s: %d of %d lines skipped: %s", name, one.bad, one.bad + one.entries, one.first_bad)
    bad = {role: sum(counts[name].bad for name, _ in named[role]) for role in made}
    return {role: replace(table, left_out=bad[role]) for role, table in made.items()}


def prepare_url(params: UrlParams, files: Files) -> Rules:
    """Memory-map the tables of hosts and URLs, and read the lists of words.

    Raises:
        SourceError: a file is not a list, has too many malformed lines, or all files are empty.
    """
    mapped = {name: ListTable.map(path) for name, path in files.get(TABLES, {}).items()} or tables_url(params, files)
    rules = Rules(params.soft_threshold, mapped["domains"], mapped["urls"], mapped["reputation"])
    named = by_role(files[f"lists/{params.lists}"], ROLES)
    for role, parse in (("hard_words", _word), ("soft_words", _word), ("sub_words", _piece)):
        for name, path in named[role]:
            table: dict[str, str] = getattr(rules, role)
            for entry in parsed(name, path, parse):
                table.setdefault(entry, name)
    if not any((*map(len, mapped.values()), rules.hard_words, rules.soft_words, rules.sub_words)):
        raise refused(params.lists, 0, "no entry", "at least one entry")
    if rules.sub_words:
        longest_first = sorted(rules.sub_words, key=len, reverse=True)
        rules.pieces = re.compile("|".join(map(re.escape, longest_first)))
    return rules


def annotate_url(batch: pa.RecordBatch, rules: Rules) -> pa.RecordBatch:
    """Match the `uri` of each document against the lists. If a URI has no host, it is compared with the lists of words
    and URLs only."""
    uris = batch.column("uri").to_pylist()
    names = [domains(host(uri, bare=True)) for uri in uris]
    blocked = _longest(names, rules.domains)
    scores = _longest(names, rules.reputation)
    urls = rules.urls.values([address(uri) for uri in uris] if len(rules.urls) else [""] * len(uris))
    rows = [
        (*_judge(uri, rules, *known), LISTING.search(uri) is not None)
        for uri, *known in zip(uris, blocked, urls, scores, strict=True)
    ]
    columns = [[row[i] for row in rows] for i in range(len(URL_SCHEMA))]
    return pa.record_batch(
        [pa.array(column, one.type) for column, one in zip(columns, URL_SCHEMA, strict=True)], schema=URL_SCHEMA
    )


def _longest(suffixes: Sequence[Sequence[str]], table: ListTable) -> list[Any]:
    """Return, for each sequence of domain names, the table's value for the first name that is in the table."""
    if not len(table):
        return [None] * len(suffixes)
    values = iter(table.values([name for names in suffixes for name in names]))
    return [next((one for one in [*islice(values, len(names))] if one is not None), None) for names in suffixes]


def _judge(
    uri: str, rules: Rules, domain: str | None, url: str | None, known: float | None
) -> tuple[bool, bool, int, int, int, float | None, str | None]:
    lowered = uri.lower()
    words = set(SPLIT.split(lowered))
    hard = words & rules.hard_words.keys()
    soft = words & rules.soft_words.keys()
    pieces = set(rules.pieces.findall(SPLIT.sub("", lowered))) if rules.pieces else set[str]()
    named = domain or url or _first(sorted(hard), rules.hard_words) or _first(sorted(pieces), rules.sub_words)
    if named is None and len(soft) >= rules.soft_threshold:
        named = _first(sorted(soft), rules.soft_words)
    return domain is not None, url is not None, len(hard), len(soft), len(pieces), known, named


def _first(names: Iterable[str], table: Mapping[str, str]) -> str | None:
    return next((table[name] for name in names if name in table), None)


def _word(line: str) -> str:
    word = line.lower()
    if not re.fullmatch(r"[a-z0-9]+", word):
        raise ValueError("one word of letters and digits")
    return word


def _piece(line: str) -> str:
    piece = SPLIT.sub("", line.lower())
    if len(piece) < MIN_SUB_WORD:
        raise ValueError(f"at least {MIN_SUB_WORD} letters or digits")
    return piece


def _score(line: str) -> tuple[str, float]:
    name, _, text = line.partition("\t")
    score = float(text)
    if math.isnan(score) or not 0 <= score <= 1:
        raise ValueError("a host name, a tab, and a number from 0 to 1")
    return domain(name), score


def _resources(params: Any) -> tuple[str, ...]:
    return (f"lists/{params.lists}",)


URL = Annotator(
    name="url",
    version="4",
    description="Matches of a document's address in lists of domains, addresses and words; reputation of its host; "
    "whether it is the address of a page that lists articles.",
    source="RefinedWeb (Penedo et al. 2023), appendix G.1; datatrove's URLFilter.",
    params=UrlParams,
    schema=URL_SCHEMA,
    reads=("uri",),
    annotate=annotate_url,
    resources=_resources,
    tables=tables_url,
    prepare=prepare_url,
)


# Check of stored documents against the lists of illegal content, for entries added after the documents passed the gate.
#
# The lists and the matching are the same as in the gate of the documents stage (`plinth.corpus.illegal`), except that
# raw records are not compared, because they are not stored. Let a policy drop `illegal.hit`; to remove the text from
# the store as well, see docs/illegal-content.md.

ILLEGAL_SCHEMA = pa.schema(
    [
        pa.field("sha256_hit", pa.bool_(), nullable=False),
        pa.field("simhash_distance", pa.int16()),  # in bits; null if no listed hash is close enough
        pa.field("phash_hit", pa.bool_(), nullable=False),
        pa.field("keyword_hits", pa.int32(), nullable=False),  # distinct keywords, if at least `min_keywords`
        pa.field("domain_hit", pa.bool_(), nullable=False),
        pa.field("list", pa.string()),  # file of the first entry that matches
        pa.field("hit", pa.bool_(), nullable=False),
    ]
)


class IllegalParams(Matching):
    """Parameters of the annotator `illegal`: the lists to match, and the limits for a match."""

    disguised: bool = internal(False, description="Match obfuscated keywords, such as `h3ll0` or `h.e.l.l.o`.")
    lists: str = internal("illegal", description="Name of the lists in `corpus.lists`.")


def prepare_illegal(params: IllegalParams, files: Files) -> Matcher:
    """Read the lists of illegal content.

    Raises:
        SourceError: a file is not a list, has a malformed line, or all files are empty.
    """
    key = f"lists/{params.lists}"
    return Matcher(read(files[key], key, params), params)


def annotate_illegal(batch: pa.RecordBatch, matcher: Matcher) -> pa.RecordBatch:
    """Match each document against the lists of illegal content, and return the matches."""
    media = media_of(batch.column("extra").to_pylist())
    found = matcher.texts(batch.column("text"), batch.column("uri").to_pylist(), media)
    return pa.RecordBatch.from_pylist([_row(hits) for hits in found], schema=ILLEGAL_SCHEMA)


def _row(hits: tuple[ListHit, ...]) -> dict[str, Any]:
    kinds = [hit.kind for hit in hits]
    return {
        "sha256_hit": "sha256_text" in kinds or "sha256_media" in kinds,
        "simhash_distance": next((hit.distance for hit in hits if hit.kind == "simhash"), None),
        "phash_hit": "phash" in kinds,
        "keyword_hits": kinds.count("keyword"),
        "domain_hit": "domain" in kinds,
        "list": hits[0].entry.file if hits else None,
        "hit": bool(hits),
    }


ILLEGAL = Annotator(
    name="illegal",
    version="2",
    description="Matches of a document in your lists of illegal content: digests, near hashes, keywords, domains.",
    source="SimHash after Charikar 2002, near hashes after Manku et al. 2007. You supply the lists.",
    params=IllegalParams,
    schema=ILLEGAL_SCHEMA,
    reads=("text", "uri", "extra"),
    annotate=annotate_illegal,
    resources=_resources,
    prepare=prepare_illegal,
)
