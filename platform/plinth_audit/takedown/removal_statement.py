"""Content of the signed removal report: the predicate of its statement.

Does not belong here: the proof, and its signature (report).
"""

from __future__ import annotations

from typing import Any

from plinth import fingerprint
from plinth.corpus.exclusions import Exclusion
from plinth.records import Frozen
from plinth_audit.takedown.exposed_runs import ExposedRun, TakedownMeasure
from plinth_audit.takedown.remaining import Remaining


class DownstreamAsset(Frozen):
    """Asset that reads documents, directly or indirectly.

    Args:
        state: state in `plinth status`.
        digest: digest of the published manifest.
        model: True if the asset is derived from a trained model.
    """

    asset: str
    state: str
    digest: str | None = None
    model: bool = False


class RebuiltAsset(Frozen):
    """Asset whose earlier versions were derived from removed text, and whose published version was not."""

    asset: str
    digest: str
    earlier: int


class BucketProof(Frozen):
    """Result of the check of one bucket.

    `taken` counts rejects by exclusion entry, and `hits` counts documents that still match an entry.
    """

    bucket: str
    manifest: str
    parts: int
    documents: int
    hits: int
    taken: dict[str, int]


class TakedownRoot(Frozen):
    """Root of trust of the report's signer."""

    name: str
    version: int
    demo: bool


class ReportedRule(Frozen):
    """Entry of the exclusion list, without its texts.

    Args:
        texts: number of texts that the entry recognizes.
        rule: digest of the entry without person, time and reason.
        identity: digest of the whole entry.
    """

    number: int
    kind: str
    value: str
    found: int
    by: str
    reason: str
    at: str
    texts: int
    rule: str
    identity: str

    @classmethod
    def of(cls, entry: Exclusion) -> ReportedRule:
        """Return the reported fields of an entry."""
        names = cls.model_fields.keys() - {"texts", "rule", "identity"}
        digests = {"rule": entry.digest, "identity": fingerprint.digest(entry)}
        return cls(**entry.model_dump(include=names), texts=len(entry.texts), **digests)


class RemovedDocuments(Frozen):
    """IDs of removed documents. `complete` is True if all matching documents are listed."""

    count: int
    complete: bool
    ids: tuple[str, ...]


class ReportedCheckpoint(Frozen):
    """Checkpoint of a run that read removed text, with its places."""

    step: int
    places: tuple[str, ...]


class ReportedRun(Frozen):
    """Run that read removed text; the fields are those of `ExposedRun`."""

    run: str
    documents: int
    times_seen: int
    exact: bool
    unknown: str
    inherits: str
    first_step: int | None
    checkpoints: tuple[ReportedCheckpoint, ...]

    @classmethod
    def of(cls, run: ExposedRun) -> ReportedRun:
        """Return the reported fields of a run."""
        same: dict[str, Any] = {
            name: getattr(run, name) for name in cls.model_fields if name not in ("first_step", "checkpoints")
        }
        held = tuple(ReportedCheckpoint(step=one.step, places=tuple(one.places)) for one in run.checkpoints)
        return cls(**same, first_step=min(run.steps, default=None), checkpoints=held)


class TakedownStatement(Frozen):
    """Predicate of the report. `list` is the digest of the exclusion list."""

    at: str
    root: TakedownRoot
    list: str | None
    entries: tuple[ReportedRule, ...]
    documents: RemovedDocuments
    corpus: tuple[BucketProof, ...]
    downstream: tuple[DownstreamAsset, ...]
    rebuilt: tuple[RebuiltAsset, ...]
    runs: tuple[ReportedRun, ...]
    remains: tuple[Remaining, ...]
    measured: tuple[TakedownMeasure, ...]
