"""What papers say, before it is written down: statements, each with the digest of its evidence.

Free text is absent on purpose, but for what a person signed (`SignedText`). A subject without evidence is None or
empty, and its paper says "not stated".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from plinth.records import Frozen
from plinth_registry.exports.models import UNRELEASED

NOT_STATED = "not stated"
#: Marks the papers of a version that the signed history has taken back.
ROLLED_BACK = "ROLLED BACK"
#: Kinds of sources that hold what a crawler fetched.
CRAWLED = ("warc", "html")


class EvidenceItem(Frozen):
    """Something signed, or named by digest in something signed."""

    name: str
    kind: Literal["manifest", "attestation", "file"]
    sha256: str


class StatedFact(Frozen):
    """A name and its value; `evidence` is a SHA-256 of `PaperFacts.evidence`."""

    name: str
    value: str | int | float | bool
    evidence: str


class SignedText(Frozen):
    """A sentence that a person signed, with name and role."""

    subject: str
    text: str
    by: str
    role: str
    evidence: str


class SliceResult(Frozen):
    """A score of the model on a slice of held-out text, with the interval and method of its estimate."""

    slice: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    method: str = ""
    evidence: str


class SourceTerms(Frozen):
    """A source as its bucket declares it. `inventory` is the digest of the list of its raw files."""

    bucket: str
    kind: str
    domain: str
    snapshot: str
    licence: str
    terms: Mapping[str, bool]
    evidence: str

    @property
    def crawled(self) -> bool:
        """True if it was read out of a crawl's archives or pages."""
        return self.kind in CRAWLED

    @property
    def origin(self) -> tuple[str, str]:
        """Bucket and origin: what the ledger has of a document's source."""
        return self.bucket, self.domain


class BucketText(Frozen):
    """The text of a bucket: documents read and kept, bytes of curated text, tokens in shards, and its part of the run.

    `seen_tokens` are those of the run, repeated ones included; `epochs` is how often the run reads the bucket.
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
    """Text of the model that the run began from, trained on again: a bucket of that model's mixture.

    `parent` is the checkpoint, `tokens` are in the bucket's shards; `seen_tokens` are those of the run, repeated ones
    included, `share` what they are of all its tokens, and `epochs` how often the run reads the bucket.
    """

    name: str
    parent: str
    tokens: int
    seen_tokens: int
    share: float
    epochs: float
    evidence: str


class BucketRule(Frozen):
    """A rule of a bucket's policy: its text drops documents, or replaces spans of them."""

    bucket: str
    reason: str
    rule: str
    evidence: str


class DomainVolume(Frozen):
    """Documents and tokens of training text from one domain."""

    domain: str
    documents: int
    tokens: int


class DomainTable(Frozen):
    """The largest domains of a text (`domains.SHARE` of all `count`), its documents, tokens and days of capture."""

    documents: int
    tokens: int
    count: int
    domains: tuple[DomainVolume, ...]
    first: str | None
    latest: str | None


class TrainedText(Frozen):
    """What the ledger has of the documents that trained the model: of all, and of those out of crawled sources."""

    all: DomainTable
    crawled: DomainTable
    languages: Mapping[str, int]
    licences: Mapping[str, int]
    evidence: str


class PaperFacts(Frozen):
    """Everything that the papers of one model say. The same evidence gives the same record.

    Args:
        name: of the release, with its version; of an unreleased model the checkpoint.
        released: the SHA-256 of the signed release record, None for a model that has none.
        rolled_back: True if the signed history has taken the release back.
        files: SHA-256 by name of the checkpoint's files.
        parts: the chain: asset and digest of every manifest down to the sources.
        buckets: the run's own; `replayed` are those of the model that it began from. What else trained that model, or
            a teacher, is in the papers of those: `run` names them.
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
    said: tuple[SignedText, ...] = ()
    evidence: tuple[EvidenceItem, ...]
    rolled_back: bool = False

    @property
    def state(self) -> str:
        """Released, rolled back, or unreleased, by the signed history."""
        return ROLLED_BACK if self.rolled_back else "released" if self.released else UNRELEASED

    def evidence_of(self, digests: Iterable[str]) -> tuple[EvidenceItem, ...]:
        """The evidence with these digests, in the order of the record."""
        wanted = frozenset(digests)
        return tuple(one for one in self.evidence if one.sha256 in wanted)
