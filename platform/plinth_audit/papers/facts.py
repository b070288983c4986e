"""Statements in the release documents, each with the digest of its evidence.

The only free text is text that a person signed (`SignedText`). If a statement has no evidence, its field is None or
empty, and the documents show "not stated".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from plinth.records import Frozen
from plinth_registry.exports.models import UNRELEASED

NOT_STATED = "not stated"
#: Label on the documents of a version that was rolled back.
ROLLED_BACK = "ROLLED BACK"
#: Kinds of sources with crawled data.
CRAWLED = ("warc", "html")


class EvidenceItem(Frozen):
    """Piece of evidence: a signed object, or an object whose digest a signed object contains."""

    name: str
    kind: Literal["manifest", "attestation", "file"]
    sha256: str


class StatedFact(Frozen):
    """Statement with a name and a value. `evidence` is the SHA-256 of an item in `PaperFacts.evidence`."""

    name: str
    value: str | int | float | bool
    evidence: str


class SignedText(Frozen):
    """Sentence that a person signed, with the signer's name and role."""

    subject: str
    text: str
    by: str
    role: str
    evidence: str


class SliceResult(Frozen):
    """Score of the model on a slice of held-out text, with its confidence interval and the interval's method."""

    slice: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    method: str = ""
    evidence: str


class SourceTerms(Frozen):
    """Source of text, with the license and the terms that its bucket declares."""

    bucket: str
    kind: str
    domain: str
    snapshot: str
    licence: str
    terms: Mapping[str, bool]
    evidence: str

    @property
    def crawled(self) -> bool:
        """True if the source is a web archive or a crawl of web pages."""
        return self.kind in CRAWLED

    @property
    def origin(self) -> tuple[str, str]:
        """Bucket and origin of the source, as the ledger records them."""
        return self.bucket, self.domain


class BucketText(Frozen):
    """Counts for a bucket's text: documents read and kept, bytes of curated text, tokens in shards, tokens trained on.

    `seen_tokens` is the number of tokens that the run trained on, with repetitions. `epochs` is the number of passes
    over the bucket.
    """

    name: str
    documents: int
    curated: int
    text_bytes: int
    tokens: int | None = None
    seen_tokens: int | None = None
    epochs: float | None = None
    evidence: str


class ReplayedBucket(Frozen):
    """Bucket from the mixture of the parent model, which the run replays. The run started from the parent model.

    `parent` is the checkpoint of the parent model, and `tokens` counts the tokens in the bucket's shards. `seen_tokens`
    counts replayed tokens in the run with repetitions, `share` is their share of all tokens in the run, and `epochs` is
    the number of passes over the bucket.
    """

    name: str
    parent: str
    tokens: int
    seen_tokens: int
    share: float
    epochs: float
    evidence: str


class BucketRule(Frozen):
    """Rule in a bucket's policy. A rule drops documents or replaces spans of text."""

    bucket: str
    reason: str
    rule: str
    evidence: str


class DomainVolume(Frozen):
    """Number of documents and tokens of training text from one domain."""

    domain: str
    documents: int
    tokens: int


class DomainTable(Frozen):
    """Domains with the most text, with their documents, tokens and days of capture.

    `count` is the number of all domains. The table lists the share `gather.SHARE` of all domains.
    """

    documents: int
    tokens: int
    count: int
    domains: tuple[DomainVolume, ...]
    first: str | None
    latest: str | None


class TrainedText(Frozen):
    """Counts from the ledger: all documents that trained the model, and those from crawled sources."""

    all: DomainTable
    crawled: DomainTable
    languages: Mapping[str, int]
    licences: Mapping[str, int]
    evidence: str


class PaperFacts(Frozen):
    """All statements in the documents of one model. The same evidence always gives the same record.

    Args:
        name: release with its version; for an unreleased model, the checkpoint.
        released: SHA-256 of the signed release record, or None if the model is not released.
        rolled_back: True if the release was rolled back in the signed history.
        files: SHA-256 of the checkpoint's files, by file name.
        chain: asset and digest of every manifest from the checkpoint back to the sources.
        buckets: buckets of the run; `replayed` has buckets of the parent model that the run started from. `run` names
            the parent or teacher model, and that model's own documents list its other data.
        size: parameters, context and forward FLOPs per token, computed from `config.json`.
        design: parameters of the run, as its manifest has them.
        environment: software and hardware of the machines that trained the model.
        released_at: time of the release record.
        dated: newest time in the signed evidence.
    """

    name: str
    released: str | None
    checkpoint: str
    recipe: str
    code: Mapping[str, str]
    files: Mapping[str, str]
    chain: Mapping[str, str]
    model: tuple[StatedFact, ...]
    run: tuple[StatedFact, ...]
    buckets: tuple[BucketText, ...]
    replayed: tuple[ReplayedBucket, ...] = ()
    sources: tuple[SourceTerms, ...]
    rules: tuple[BucketRule, ...]
    processing: tuple[StatedFact, ...]
    scores: tuple[SliceResult, ...]
    attested: tuple[StatedFact, ...]
    trained: TrainedText | None
    size: tuple[StatedFact, ...] = ()
    design: tuple[StatedFact, ...] = ()
    environment: tuple[StatedFact, ...] = ()
    released_at: StatedFact | None = None
    dated: StatedFact | None = None
    said: tuple[SignedText, ...] = ()
    evidence: tuple[EvidenceItem, ...]
    rolled_back: bool = False

    @property
    def state(self) -> str:
        """State of the model in the signed history: released, rolled back, or unreleased."""
        return ROLLED_BACK if self.rolled_back else "released" if self.released else UNRELEASED

    def evidence_of(self, digests: Iterable[str]) -> tuple[EvidenceItem, ...]:
        """Return the evidence items with the listed digests, in the order of `evidence`."""
        wanted = frozenset(digests)
        return tuple(one for one in self.evidence if one.sha256 in wanted)
