"""Training text by domain, language, licence and day, out of the ledger.

One pass over the columns; memory grows with the number of domains. The domain of a document is the host of its address,
without `www.`; of one without a web address the origin that its source declares. As a query of any engine that reads
Parquet (`tests/registry/papers/test_domains.py` compares it):

    SELECT domain, count(*), sum(tokens) FROM ledger WHERE decision = 'train' GROUP BY 1 ORDER BY 3 DESC, 1

Documents of crawled sources, which their bucket and declared origin tell, are counted apart as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.errors import IntegrityError
from plinth.records import Manifest
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth.text.hosts import of_name
from plinth_registry.papers.facts import DomainTable, DomainVolume, TrainedText

#: Share of all domains that the European Commission's template asks for, by size of content (of SMEs less).
SHARE = 0.1
UNKNOWN = "(no domain)"
LANGUAGE = "language__label"
_SEPARATOR = "\0"
_HOST = r"^https?://(?:[^/?#]*@)?(?P<host>\[[^\]]*\]|[^:/?#@]+)"


def trained_text(store: Store, ledger: Manifest, crawled: Collection[tuple[str, str]] = ()) -> TrainedText:
    """Counts of the documents that trained a model.

    Args:
        crawled: bucket and declared origin of the crawled sources.

    Raises:
        IntegrityError: a document that trained the model has no tokens: the ledger is older than the shards.
    """
    whole, fetched = _DomainCounts(), _DomainCounts()
    languages, licences = Counter[str](), Counter[str]()
    origins = pa.array([_SEPARATOR.join(one) for one in crawled], pa.string())
    for batch in _rows(store, ledger):
        if batch.column("tokens").null_count:
            raise IntegrityError(
                f"the ledger {ledger.digest[:16]} knows no tokens of {batch.column('tokens').null_count} documents",
                expected="tokens of every document that trained the model",
                remedy="plinth run --select ledger",
            )
        whole.add(batch)
        origin = pc.binary_join_element_wise(batch.column("bucket"), batch.column("domain"), _SEPARATOR)
        fetched.add(batch.filter(pc.is_in(origin, value_set=origins)))
        licences.update(_counts(batch, "licence"))
        languages.update(_counts(batch, LANGUAGE))
    return TrainedText(
        all=whole.table(),
        crawled=fetched.table(),
        languages=dict(sorted(languages.items(), key=lambda pair: (-pair[1], pair[0]))),
        licences=dict(sorted(licences.items())),
        evidence=ledger.digest,
    )


class _DomainCounts:
    """Documents, tokens and days of capture, summed over batches."""

    def __init__(self) -> None:
        self._documents, self._tokens, self._days = Counter[str](), Counter[str](), list[str]()

    def add(self, batch: pa.RecordBatch) -> None:
        for row in _sums(batch):
            self._documents[row["domain"]] += row["domain_count"]
            self._tokens[row["domain"]] += row["tokens_sum"]
        days = pc.min_max(batch.column("captured_at")).as_py().values()
        self._days += [day.date().isoformat() for day in days if day]

    def table(self) -> DomainTable:
        tokens = self._tokens
        found = [DomainVolume(domain=name, documents=n, tokens=tokens[name]) for name, n in self._documents.items()]
        found.sort(key=lambda one: (-one.tokens, one.domain))
        return DomainTable(
            documents=self._documents.total(),
            tokens=tokens.total(),
            count=len(found),
            domains=tuple(found[: math.ceil(len(found) * SHARE)]),
            first=min(self._days, default=None),
            latest=max(self._days, default=None),
        )


def _rows(store: Store, ledger: Manifest) -> Iterator[pa.RecordBatch]:
    """Columns of the documents that train."""
    wanted = ["bucket", "uri", "domain", "licence", "captured_at", "tokens", "decision"]
    for part in ledger.parts:
        if "/part-" not in part.name or not part.rows:
            continue
        known = pq.read_schema(store.open_path(part.blob)).names
        for batch in iter_batches(store, part, [*wanted, *([LANGUAGE] if LANGUAGE in known else [])]):
            yield batch.filter(pc.equal(batch.column("decision"), "train"))


def _sums(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Documents and tokens by domain."""
    hosts = pc.struct_field(pc.extract_regex(pc.utf8_lower(batch.column("uri")), _HOST), "host")
    coded = hosts.dictionary_encode()  # each host is read once
    names = pa.array([of_name(name).removeprefix("www.") or None for name in coded.dictionary.to_pylist()], pa.string())
    domains = pc.coalesce(names.take(coded.indices), batch.column("domain"), pa.scalar(UNKNOWN))
    table = pa.table({"domain": domains, "tokens": batch.column("tokens")})
    return list(table.group_by("domain").aggregate([("domain", "count"), ("tokens", "sum")]).to_pylist())


def _counts(batch: pa.RecordBatch, name: str) -> dict[str, int]:
    found = pc.value_counts(batch.column(name)).to_pylist() if name in batch.schema.names else []
    return {row["values"]: row["counts"] for row in found if row["values"]}
