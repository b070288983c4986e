"""Search for the documents in a takedown request: ledger index, near duplicates and verbatim spans.

    url, domain, `licence`, document  rows of all ledgers, then the other members of their clusters
    text                              near duplicates by the published MinHash index, and documents with a verbatim
                                      span by the trace indexes; then rows and clusters as above

`notes` lists the indexes that are missing. If an index is missing, the result may be incomplete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.corpus import exclusions
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.near.index import Match, open_published
from plinth.corpus.documents.removal import TextRules, look, taken_rows
from plinth.corpus.exclusions import Alike, Exclusion, Kind, TextSignature, normal, sign_texts
from plinth.corpus.llm.rewriting import MARK
from plinth.errors import MissingError, RequestError
from plinth.provenance.document_rows import DOCUMENTS, published
from plinth.records import Manifest
from plinth.storage.parts import read_row
from plinth_audit.takedown import index
from plinth_audit.takedown.index import CLUSTER, IndexedPart, Rows
from plinth_audit.trace.tracer import SUFFIX as TRACE_INDEX
from plinth_audit.trace.tracer import Tracer

#: Maximum candidates of the near-duplicate index whose texts are compared.
CANDIDATES = 1000
SAME, NEAR, SPAN = "same text", "near duplicate", "verbatim span"
DERIVED = "derived from a match by a language model"
#: Maximum number of documents listed; the count covers all.
LISTED = 1000
COLUMNS = ["id", "bucket", "uri", "licence", "decision", "reason", "stage", "cluster", "shard", "position", "tokens"]
#: Values to search by kind, with the description of a match.
Wanted = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class HeldDocument:
    """Document that matches a takedown search.

    `how` is the reason for the match. `part` and `row` give the document's position in its bucket's documents. The
    position is the same in all snapshots that `ledgers` list.
    """

    id: str
    bucket: str
    part: str
    row: int
    uri: str
    licence: str
    decision: str
    reason: str | None
    stage: str | None
    cluster: str | None
    shard: str | None
    position: int | None
    tokens: int | None
    published: bool
    ledgers: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class FoundDocuments:
    """Documents that match a takedown search, with counts.

    Args:
        documents: at most `LISTED`, published documents first.
        published: number of matching rows in the published ledger, by part.
        earlier: number of matching rows that are only in earlier ledgers.
        shards: number of tokens in the matching published documents, by shard.
        notes: searches that were not possible.
    """

    kind: Kind
    value: str
    documents: tuple[HeldDocument, ...] = ()
    published: Mapping[str, int] = field(default_factory=dict)
    earlier: int = 0
    shards: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of matching documents in the published corpus."""
        return sum(self.published.values())


def find(ctx: Context, kind: Kind, value: str, alike: Alike | None = None) -> FoundDocuments:
    """Find all documents for a URL, domain, license, ID or text in all ledgers, including near duplicates.

    Args:
        value: user input.
        alike: similarity parameters for a text; by default the parameters of the published near-duplicate index.

    Raises:
        RequestError: the value is invalid.
        MissingError: there is no ledger.
    """
    wanted = normal(kind, value)
    parts = index.every_part(ctx)
    if kind != "text":
        return _found(ctx, parts, kind, wanted, {(kind, wanted): kind})
    known, notes = documents_with(ctx, wanted, alike)
    found = _found(ctx, parts, kind, wanted, {("document", id_): how for id_, how in known.items()})
    return replace(found, notes=notes)


def of_entry(ctx: Context, entry: Exclusion) -> FoundDocuments:
    """Find the documents that match an exclusion entry, by its rule and its listed documents."""
    wanted: Wanted = {("document", id_): "taken down" for id_ in entry.documents}
    wanted = {**wanted, **({} if entry.kind == "text" else {(entry.kind, entry.value): entry.kind})}
    return _found(ctx, index.every_part(ctx), entry.kind, entry.value, wanted)


def _found(ctx: Context, parts: Sequence[IndexedPart], kind: Kind, value: str, wanted: Wanted) -> FoundDocuments:
    nothing = np.empty(0, np.int64)
    direct = _rows(ctx, parts, wanted)
    first = list(_details(ctx, parts, direct, lambda row: _how(row, wanted)))
    clusters = {(CLUSTER, row.cluster): NEAR for row in first if row.cluster}
    others = _rows(ctx, parts, clusters)
    near = {at: np.setdiff1d(rows, direct.get(at, nothing)) for at, rows in others.items()}
    seen = {row.id for row in first}
    listed = [*first, *(row for row in _details(ctx, parts, near, lambda _: NEAR) if row.id not in seen)]
    made = _derived_from(ctx, parts, {row.uri for row in listed})
    listed += [row for row in _details(ctx, parts, made, lambda _: DERIVED) if row.id not in {one.id for one in listed}]
    every = {at: reduce(np.union1d, (one.get(at, nothing) for one in (direct, near, made)))
             for at in {*direct, *near, *made}}  # fmt: skip
    published = {parts[at].part.name: int(rows.size) for at, rows in sorted(every.items()) if parts[at].published}
    earlier = sum(int(rows.size) for at, rows in every.items() if not parts[at].published)
    shards = _shards(ctx, parts, every)
    return FoundDocuments(kind, value, tuple(_distinct(listed)), published, earlier, shards)


def _derived_from(ctx: Context, parts: Sequence[IndexedPart], uris: Collection[str]) -> dict[int, Rows]:
    """Return the rows of documents that were rewritten from documents with these addresses."""
    found = {}
    for at, rows in _rows(ctx, parts, {("url", exclusions.address(uri)): "" for uri in uris}).items():
        batches = sorted_runs.iter_rows(ctx.store, parts[at].part, ["uri"], rows)
        named = [uri for batch in batches for uri in batch.column("uri").to_pylist()]
        own = np.array([MARK in uri and uri.rpartition(MARK)[0] in uris for uri in named], np.bool_)
        found[at] = rows[own]
    return {at: rows for at, rows in found.items() if rows.size}


def _rows(ctx: Context, parts: Sequence[IndexedPart], wanted: Wanted) -> dict[int, Rows]:
    keys = [index.key_of(kind, value) for kind, value in wanted]
    if not keys:
        return {}
    every = metered(ctx.progress, "searching ledgers", enumerate(parts), len(parts))
    found = {at: index.rows_of(ctx.store, part.keys, keys) for at, part in every}
    return {at: rows for at, rows in found.items() if rows.size}


def _details(ctx: Context, parts: Sequence[IndexedPart], rows: Mapping[int, Rows], how: Any) -> Iterator[HeldDocument]:
    """Yield the matching documents in up to `LISTED` ledger rows. Rows of the published ledger come first."""
    left = LISTED
    for at in sorted(rows, key=lambda at: (not parts[at].published, at)):
        part, chosen = parts[at], rows[at][:left]
        place: dict[str, Any] = {"part": part.part.name, "published": part.published, "ledgers": part.ledgers}
        batches = sorted_runs.iter_rows(ctx.store, part.part, COLUMNS, chosen)
        values = (row for batch in batches for row in batch.to_pylist())
        for number, row in zip(chosen.tolist(), values, strict=True):
            if why := how(row):
                yield HeldDocument(**row, **place, row=number, how=why)
        left -= chosen.size
        if not left:
            return


def _how(row: Mapping[str, Any], wanted: Wanted) -> str:
    """Return the reason why a row matches the search, or an empty string if only its index key collides."""
    values = [("document", row["id"]), ("url", exclusions.address(row["uri"]))]
    values += [("domain", name) for name in exclusions.domains_of(row["uri"])]
    values += [("licence", name) for name in sorted(exclusions.licences_of(row["licence"]))]
    return next((wanted[value] for value in values if value in wanted), "")


def snapshots_of(ctx: Context, document: HeldDocument) -> Iterator[Manifest]:
    """Yield the `documents` manifests that contain a document, the published manifest first."""
    for digest in document.ledgers:
        made = ctx.refs.load(digest).inputs.get(f"{document.bucket}/documents")
        if made is not None:
            yield ctx.refs.load(made)


def text_of(ctx: Context, document: HeldDocument) -> str | None:
    """Return the text of a document, or None if the store has no snapshot with the text."""
    name = document.part.removeprefix(f"{document.bucket}/")
    for manifest in snapshots_of(ctx, document):
        part = next((part for part in manifest.parts if part.name == name), None)
        if part is not None and ctx.store.has(part.blob):
            text: str = read_row(ctx.store, part, document.row, ["text"])["text"]
            return text
    return None


def _shards(ctx: Context, parts: Sequence[IndexedPart], rows: Mapping[int, Rows]) -> dict[str, int]:
    """Return the number of tokens by shard, summed over the rows of the published ledger."""
    counts: Counter[str] = Counter()
    for at, own in sorted(rows.items()):
        if not parts[at].published:
            continue
        for batch in sorted_runs.iter_rows(ctx.store, parts[at].part, ["shard", "tokens"], own):
            placed = batch.to_pydict()
            for shard, tokens in zip(placed["shard"], placed["tokens"], strict=True):
                if shard is not None:
                    counts[shard] += tokens
    return dict(sorted(counts.items()))


def _distinct(documents: Iterable[HeldDocument]) -> list[HeldDocument]:
    """Return each document once, as it first occurs in the input."""
    known: dict[tuple[str, str], HeldDocument] = {}
    for one in documents:
        known.setdefault((one.bucket, one.id), one)
    return list(known.values())


def alike_of(ctx: Context) -> Alike:
    """Return the similarity parameters of the published deduplication, or the defaults if no deduplication is
    published."""
    made = ctx.refs.published(minhash.ASSET)
    params = made.params.get("minhash", {}) if made else {}
    return Alike(**{name: value for name, value in params.items() if name in Alike.model_fields and value is not None})


def documents_with(ctx: Context, text: str, alike: Alike | None = None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the documents that contain a text (kind of match by ID), and notes on missing indexes.

    If only a span of 32 or more tokens matches, the document quotes the text but is not a copy.
    """
    rule = alike or alike_of(ctx)
    found, notes = dict[str, str](), list[str]()
    for what, search in (("near duplicates", _near), ("verbatim spans", _spans)):
        try:
            for id_, how in search(ctx, text, rule):
                found.setdefault(id_, how)
        except MissingError as error:
            notes.append(f"{what} were not searched: {error.what}")
    return found, tuple(notes)


def _near(ctx: Context, text: str, alike: Alike) -> Iterator[tuple[str, str]]:
    rules = _rules(text, alike)
    with open_published(ctx) as opened:
        for match in opened.near(text, 0.0, CANDIDATES):
            if match.id is not None and (match.exact or _is_alike(ctx, match, rules)):
                yield match.id, SAME if match.exact else NEAR


def _spans(ctx: Context, text: str, alike: Alike) -> Iterator[tuple[str, str]]:
    rules = _rules(text, alike)
    quoting = Tracer(ctx).quoting(text)
    for (bucket, id_), (tokens, span) in sorted(quoting.items(), key=lambda each: (-each[1][0], each[0])):
        curated = ctx.refs.load(ctx.refs.current(f"{bucket}{TRACE_INDEX}").inputs[f"{bucket}/curated"])
        part = curated.named("part-")[span.part]
        whole = read_row(ctx.store, part, span.row, ["text"])["text"]
        yield id_, NEAR if _hits(rules, whole) else f"{SPAN} of {tokens:,} tokens"


def _is_alike(ctx: Context, match: Match, rules: TextRules) -> bool:
    parts = ctx.refs.current(f"{match.bucket}/documents").parts
    part = next((one for one in parts if one.name == match.part), None)
    return part is not None and _hits(rules, read_row(ctx.store, part, match.row, ["text"])["text"])


def _rules(text: str, alike: Alike) -> TextRules:
    signed: list[tuple[TextSignature, int]] = [(one, 0) for one in sign_texts([text], alike)]
    return TextRules(((alike, tuple(signed)),))


def _hits(rules: TextRules, text: str) -> bool:
    return any(rules.look(pa.array([text], pa.large_string())))


# Exclusion entry of a request, with the number of documents it excludes.
#
# An entry for a URL, a document or a text includes the signatures of the texts, so that an edited copy under another
# address is excluded, too. An entry for a domain or a license only matches columns, unless texts are requested.

#: Share of the corpus above which an entry needs a confirmation.
MOST_SHARE = 0.05
#: Kinds that include texts by default.
WITH_TEXTS: tuple[Kind, ...] = ("url", "document", "text")


@dataclass(frozen=True)
class Proposal:
    """Exclusion entry before it is signed, with counts of the documents that it excludes.

    Args:
        fields: fields of the entry except number, person and time.
        found: found documents, before rules are applied.
        takes: number of excluded published documents by bucket.
        parts: number of parts to rewrite.
        of_parts: total number of parts.
        documents: number of documents in the corpus.
    """

    fields: Mapping[str, Any]
    found: FoundDocuments
    takes: Mapping[str, int] = field(default_factory=dict)
    parts: int = 0
    of_parts: int = 0
    documents: int = 0

    @property
    def count(self) -> int:
        return sum(self.takes.values())

    @property
    def share(self) -> float:
        """Share of the corpus that the entry excludes, by number of documents."""
        return self.count / self.documents if self.documents else 0.0

    @property
    def needs_confirmation(self) -> bool:
        return self.count > 1 and self.share > MOST_SHARE


def propose(
    ctx: Context, kind: Kind, value: str, reason: str, *, texts: bool | None = None, spans: bool = False
) -> Proposal:
    """Propose an exclusion entry for a takedown request.

    Args:
        texts: True to also exclude these texts under other addresses; by default True for the kinds in `WITH_TEXTS`.
        spans: True to also exclude documents that quote 32 or more tokens of a text.

    Raises:
        RequestError: the value is invalid, or there are too many texts.
        MissingError: no document has this ID, or there is no ledger.
        SignatureError: the exclusion list fails verification.
    """
    if not reason.strip():
        raise RequestError("an exclusion needs a reason", expected="requester and reason")
    alike = alike_of(ctx)
    found = find(ctx, kind, value, alike)
    if kind == "document" and not found.documents:
        raise MissingError(
            f"no document {value} in any ledger", remedy="find IDs with `plinth corpus takedown find --url URL`"
        )
    chosen = [one for one in found.documents if spans or not one.how.startswith(SPAN)]
    wants = kind in WITH_TEXTS if texts is None else texts
    signed = _signed(ctx, found, chosen, alike) if wants else ()
    named = tuple(sorted(one.id for one in chosen)) if kind == "text" else ()
    rule = sign_texts([found.value], alike)[0].digest if kind == "text" else found.value
    fields = {"kind": kind, "value": rule, "alike": alike, "texts": signed, "documents": named}
    return _counted(ctx, Proposal({**fields, "found": found.count, "reason": reason}, found))


def _signed(
    ctx: Context, found: FoundDocuments, chosen: Sequence[HeldDocument], alike: Alike
) -> tuple[TextSignature, ...]:
    """Return signatures of the requested text or of the matching documents, to recognize their near duplicates."""
    if found.count + found.earlier > len(found.documents) >= LISTED:
        raise RequestError(
            f"too many texts for one exclusion entry (limit {LISTED:,})",
            found=f"{found.count + found.earlier:,} documents",
            remedy="add --no-texts",
        )
    own = [one for one in chosen if found.kind == "text" or one.how != NEAR]
    texts = [text for one in own if (text := text_of(ctx, one)) is not None]
    texts += [found.value] if found.kind == "text" else []
    return sign_texts(texts, alike) if texts else ()


def _counted(ctx: Context, proposal: Proposal) -> Proposal:
    """Return the proposal, completed with the number of published documents that the next build would exclude."""
    earlier = exclusions.read(ctx)
    number = len(earlier) + 1
    entry = Exclusion(number=number, prior=None, by="-", at="-", **proposal.fields)
    takes, parts, of_parts, documents = dict[str, int](), 0, 0, 0
    for bucket, counts in hits(ctx, (*earlier, entry), number).items():
        takes |= {bucket: sum(counts)} if sum(counts) else {}
        parts, of_parts = parts + sum(map(bool, counts)), of_parts + len(counts)
        documents += ctx.refs.current(f"{bucket}{DOCUMENTS}").stats["documents"]
    return Proposal(proposal.fields, proposal.found, takes, parts, of_parts, documents)


def hits(ctx: Context, entries: Sequence[Exclusion], only: int | None = None) -> dict[str, list[int]]:
    """Return the number of documents that match exclusion entries, by bucket and part.

    Args:
        only: number of the entry to count; if None, all entries are counted.
    """
    found = {}
    for bucket, manifest in published(ctx, DOCUMENTS):
        looks = look(ctx, f"{bucket}{DOCUMENTS} (takedown)", manifest.named("part-"), entries)
        rows = [taken_rows(ctx.store, one).values() for one in looks]
        found[bucket] = [sum(only in (None, number) for number in own) for own in rows]
    return found
