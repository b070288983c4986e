"""`pii/data`: personal data in training text; what gates on personal data have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from plinth.evaluation.gate import release_gate
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement, Stats
from plinth.extensions import late
from plinth.records import Frozen, Manifest
from plinth_registry.gates.facts import Evidence, F
from plinth_registry.gates.margins import WHOLE, UpperBound, worst_share
from plinth_registry.gates.result import GateResult, missing, number


class PiiPolicy(Frozen):
    """Personal data, as the corpus's own annotator finds it."""

    max_data_share: float = Field(
        0.02, gt=0, le=1, description="Bound on the upper limit in training text, as a whole and of every bucket."
    )
    min_documents: int = Field(
        150, ge=1, description="A bucket of fewer is shown and not judged (0 found of 150 is at most 2%)."
    )
    max_output_share: float = Field(
        0.05, gt=0, le=1, description="Bound on the upper limit in what the model writes without a prompt."
    )
    max_memorised_share: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Bound on the upper limit of outputs, also invited ones, with personal data out of training text.",
    )


class PiiShare(Frozen):
    """Texts in which the corpus's own detector finds personal data, with the upper limit of their share."""

    texts: int
    found: int
    at_most: float
    slices: Mapping[str, PiiShare] = Field(default_factory=dict, description="The same of each bucket.")
    per_million: Mapping[str, float] = Field(
        default_factory=dict, description="By kind of personal data: upper limit of texts of a million."
    )
    detector: str = Field("", description="Its name and version.")


def read(stats: Stats) -> PiiShare:
    """The share of training text, as a whole, by bucket and by kind."""
    buckets = {name: pii_share(one) for name, one in stats["buckets"].items() if one["documents"]}
    kinds = {kind: one["per_million_at_most"] for kind, one in stats["kinds"].items() if stats["documents"]}
    more = {"slices": buckets, "per_million": kinds, "detector": detector_name(stats)}
    return pii_share(stats).model_copy(update=more)


def detector_name(stats: Mapping[str, Any]) -> str:
    """Name and version of the detector."""
    return f"{stats['detector']['annotator']} version {stats['detector']['version']}"


def pii_share(stats: Mapping[str, Any], counted: str = "documents") -> PiiShare:
    """The share in statistics whose texts are counted under this name."""
    return PiiShare(texts=stats[counted], found=stats["found"], at_most=stats["at_most"])


def of_all_text(read: Callable[[Stats], F]) -> Callable[[Mapping[str, Manifest], JudgedCheckpoint], F | None]:
    """`read` of a measurement that is evidence where all the text in the ancestry of the checkpoint was read."""

    def facts(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> F | None:
        (made,) = found.values()
        known = judged.trained_on
        return read(made.stats) if known is not None and known <= set(made.inputs.values()) else None

    return facts


def pii_data(asked: PiiPolicy, evidence: Evidence) -> GateResult:
    """Personal data left in training text after its edits."""
    known = evidence.of("pii_data", PiiShare)
    if not known or known.texts <= 0:
        return missing("pii_data")
    shares = {WHOLE: known, **known.slices}
    rates = {name: UpperBound(one.texts, one.at_most, one.found) for name, one in shares.items()}
    more = {
        "slices": {name: share_figures(share) for name, share in shares.items()},
        "per_million_at_most": {kind: number(limit) for kind, limit in known.per_million.items()},
        "detector": known.detector,
    }
    return worst_share("pii_data", "personal data", rates, asked.min_documents, asked.max_data_share, **more)


def share_figures(one: PiiShare) -> dict[str, float | str]:
    """A share as the evidence of a verdict."""
    return {"texts": one.texts, "found": one.found, "at_most": number(one.at_most)}


MEASUREMENT = Measurement(
    name="pii_data",
    description="Personal data that is left in training text.",
    asset="pii/data",
    stages=late("plinth_assets.measurements.pii_stage:stages"),
    facts=PiiShare,
    read=of_all_text(read),
    recount=late("plinth_assets.measurements.pii_stage:recount"),
    section=late("plinth_assets.measurements.pii_stage:section"),
    statement="personal_data",
    position=9,
)


GATE = release_gate(pii_data, PiiPolicy, "pii", ("pii_data",))
