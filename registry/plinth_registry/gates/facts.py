"""Evidence of the gates: each field of `Evidence` corresponds to one kind of attestation.

None, a count of 0 or an empty table is missing evidence, and the gate that needs it fails. Intervals and bounds are
computed by the evaluation with `plinth.evaluation.statistics`, never by gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, SerializeAsAny, field_validator

from plinth.evaluation.measurement import MEASUREMENTS
from plinth.records import Frozen
from plinth.training.corruption.sampling import ReplayRecord
from plinth.training.forensics.order_proof import OrderProof
from plinth.training.forensics.proof import Tolerance

F = TypeVar("F", bound=Frozen)


class CheckResult(Frozen):
    """Outcome of a check that runs outside the gates, with its findings as text."""

    holds: bool
    detail: str


class CodeChange(Frozen):
    """Change of the code that trains, between two attempts of a run."""

    text: str
    increase: float | None = Field(description="Upper end of the loss increase in nats; None if it was not compared.")


class CodeFacts(Frozen):
    """Code versions that the training used, as stated by the trainer at each start of the ranks."""

    commits: tuple[str, ...] = ()
    unclean: tuple[str, ...] = Field((), description="One sentence for each machine without a clean commit.")
    changes: tuple[CodeChange, ...] = ()


class SliceScore(Frozen):
    """Bits per byte on one held-out slice: the model and two baselines on the same bytes."""

    bytes: int
    model: float
    gzip: float
    trigram: float


class EvaluationFacts(Frozen):
    """Scores of the checkpoint on held-out text, by slice."""

    slices: Mapping[str, SliceScore]


class ProbeWorth(Frozen):
    """Signal of a probe and its ratio to the noise of the score; see `plinth.evaluation.probes.scoring`."""

    items: int
    signal: float
    snr: float | None = Field(description="Signal-to-noise ratio; None if the noise is unknown.")
    decides: bool = Field(description="True for a positive signal with a signal-to-noise ratio of at least 1.")


class ProbeFacts(Frozen):
    """Signal and noise of every probe, by name."""

    probes: Mapping[str, ProbeWorth]


class TaskScore(Frozen):
    """Number of documents on which a task was measured, and number of damaged documents."""

    documents: int
    damaged: int = 0


class TaskFacts(Frozen):
    """Numbers of documents per task, over all task sets."""

    tasks: Mapping[str, TaskScore]


class PairedLine(Frozen):
    """Paired difference between candidate and champion (candidate minus champion), with the bounds of its interval."""

    kind: str = Field(description="Kind of measurement: `slices`, `probes`, `tasks`, …")
    measure: str
    slice: str = Field(description="Slice of the text: `all`, or a label such as `bucket web`.")
    fewer_is_better: bool
    clusters: int = Field(description="Sample size: number of documents, templates or items.")
    value: float
    low: float
    high: float

    @property
    def worse_at_most(self) -> float:
        """Upper bound of the candidate's loss relative to the champion, in the unit of the measure."""
        return self.high if self.fewer_is_better else -self.low


class ComparisonFacts(Frozen):
    """Comparison of the candidate with another model on the same measurements."""

    candidate: str = Field(description="Digest of the candidate's checkpoint.")
    champion: str = Field(description="Digest of the other checkpoint.")
    lines: tuple[PairedLine, ...]


class ContaminationFacts(Frozen):
    """Number of training documents, and number of training documents that overlap the held-out set."""

    documents: int
    contaminated: int


class GrantedUses(Frozen):
    """Uses that the owner of a source permits, and the amount of the source in the training text."""

    documents: int
    train: bool
    redistribute: bool
    commercial: bool


class LicenceFacts(Frozen):
    """Licenses and terms of the training text."""

    documents: Mapping[str, int] = Field(description="Number of training documents by SPDX expression.")
    permitted: tuple[str, ...] = Field((), description="SPDX identifiers that the recipe permits.")
    sources: Mapping[str, GrantedUses] = Field(default_factory=dict, description="Declared terms by source.")


class ToleranceFacts(Frozen):
    """Relative difference between a replay and the run, and between two replays."""

    differences: Mapping[str, float] = Field(
        description="Differences between the original run and its replay, by quantity."
    )
    bounds: Mapping[str, float] = Field(description="Tolerance of each quantity, measured by two replays.")
    hardware: tuple[str, ...] = Field(description="Hardware of each rank during the measurement.")
    method: str
    faults: tuple[str, ...] = Field((), description="Reasons why the replay exceeds the tolerance.")

    @classmethod
    def of(cls, measured: Tolerance) -> ToleranceFacts:
        """Return the tolerance in a proof that training can be resumed, as facts."""
        return cls(
            differences={name: one.difference for name, one in measured.bounds.items()},
            bounds={name: one.bound for name, one in measured.bounds.items()},
            hardware=measured.hardware,
            method=measured.method,
            faults=measured.faults,
        )


class CorruptionFacts(Frozen):
    """Replays of sampled steps on other devices during training, as signed with the checkpoint."""

    replays: ReplayRecord
    steps: int = Field(ge=0, description="Number of steps of the run.")

    @property
    def bound(self) -> float:
        """Upper limit of the share of corrupt steps at 95%."""
        return self.replays.bound(self.steps)


class ResumeFacts(Frozen):
    """Result of comparing a resumed run with the original run."""

    bit_exact: bool
    compared_steps: int
    faults: tuple[str, ...] = Field((), description="Reasons why the replay is not bit-exact.")
    unproved: str = Field(
        "",
        description="Reason why no resumed run was compared; empty if one was.",
        exclude_if=lambda given: not given,
    )
    order: OrderProof | None = Field(
        None,
        description="Replay of sampled steps of an external trainer.",
        exclude_if=lambda given: given is None,
    )
    tolerance: ToleranceFacts | None = Field(
        None,
        description="Measured tolerance if the replay is not bit-exact.",
        exclude_if=lambda given: given is None,
    )
    corruption: CorruptionFacts | None = Field(
        None,
        description="Search for silent data corruption during training.",
        exclude_if=lambda given: given is None,
    )


class StabilityFacts(Frozen):
    """Number of the run's events by kind: restarts, interventions, refused checkpoints, diverged steps."""

    events: Mapping[str, int]


class CostFacts(Frozen):
    """Amounts that the run used, such as `wall_s`, `tokens`, `flops`, `kwh`."""

    amounts: Mapping[str, float]


class PromisedLoss(Frozen):
    """Mean training loss of a segment of the run, with its promised interval, in nats per token."""

    loss: float
    low: float
    high: float


class ContractFacts(Frozen):
    """Launch contract of the run, and the losses that the run reached."""

    owner: str
    number: int
    rank_hours: float = Field(description="Budget: maximum rank-hours of all jobs of the run.")
    level: float | None = Field(None, description="Level of the predicted curve; None if no curve was predicted.")
    segments: int = Field(0, description="Number of segments of the predicted curve.")
    missed: tuple[str, ...] = Field((), description="Segments with a loss outside the interval.")
    final: PromisedLoss | None = Field(
        None, description="Last segment; None if the run ended before it, or without a finite loss."
    )


class Approval(Frozen):
    """Decision of one person about a candidate, and the way in which it was given."""

    by: str
    decision: Literal["approved", "rejected"]
    reason: str
    how: Literal["statement", "tag"]
    key: str = Field("", description="Identity of the key that signed the decision; empty for a tag.")
    policy: str = Field(
        "", description="Digest of the gate policy at the time of the decision; empty for an unsigned tag."
    )
    proxy: str = Field("", description="Owner of the server key that signed the author of a tag; empty if unsigned.")
    after: int = Field(
        0,
        ge=0,
        exclude_if=lambda given: not given,
        description="Number of the release record that ended the candidate's earlier promotion; 0 if there is none.",
    )


class Evidence(Frozen):
    """Evidence for the gates. A field is None if there is no evidence of this kind, and the gate that needs it fails.

    The evaluating process itself determines `signature`, `lineage`, `code`, `contract`, `taints`, `champion`, `parent`,
    `expected_slices`, `own` and the decisions of people. All other fields are attested, one field per kind of
    attestation; measurements are in `measured`.
    """

    signature: CheckResult | None = None
    lineage: CheckResult | None = None
    code: CodeFacts | None = None
    contract: ContractFacts | None = Field(None, description="Launch contract; None if the run had none.")
    taints: tuple[str, ...] | None = None
    champion: str | None = Field(None, description="Digest of the champion's checkpoint; empty if there is none.")
    first_release: Literal["allowed", "refused"] = Field(
        "allowed", description="Decision of the policy on a first release, which has no champion to compare with."
    )
    parent: str | None = Field(None, description="Digest of the initial checkpoint; empty for random weights.")
    expected_slices: tuple[str, ...] = ()
    miscounted: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Reported numbers that do not match the tables they were computed from, by kind of evidence.",
    )

    measured: Mapping[str, SerializeAsAny[Frozen]] = Field(
        default_factory=dict, description="Facts of each measurement, by its name (`plinth.evaluation.measurement`)."
    )
    contamination: ContaminationFacts | None = None
    licences: LicenceFacts | None = None
    resume: ResumeFacts | None = None
    stability: StabilityFacts | None = None
    cost: CostFacts | None = None

    own: Mapping[str, Any] = Field(default_factory=dict, description="Findings that gates look up (`Gate.find`).")

    requested_by: str | None = None
    approvals: tuple[Approval, ...] | None = None
    approval_faults: tuple[str, ...] = ()

    @field_validator("measured", mode="before")
    @classmethod
    def _records(cls, given: Mapping[str, Any]) -> dict[str, Frozen]:
        """Convert facts that are given as plain data to the record types of their own measurements."""
        return {
            name: one if isinstance(one, Frozen) else MEASUREMENTS[name].facts.model_validate(one)  # type: ignore[union-attr]
            for name, one in given.items()
            if one is not None
        }

    def of(self, name: str, record: type[F]) -> F | None:
        """Return the facts of a measurement, or None if they are absent or have another record type."""
        found = self.measured.get(name)
        return found if isinstance(found, record) else None
