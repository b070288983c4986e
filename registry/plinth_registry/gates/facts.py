"""The evidence that gates read: each field of `Evidence` is what one kind of attestation states.

A field that is None, a count of 0 or an empty table is missing evidence, and the gate that needs it fails. Intervals
and limits are those of `plinth.evaluation.statistics`, as the evaluation wrote them; no gate makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from plinth.operation.indicators import ErrorBudget
from plinth.records import Frozen
from plinth.training.forensics.proof import Tolerance


class CheckResult(Frozen):
    """The outcome of a check that ran elsewhere, with its findings in words."""

    holds: bool
    detail: str


class CodeFacts(Frozen):
    """The code that trained, as the trainer stated it at each start of the ranks."""

    commits: tuple[str, ...] = ()
    unclean: tuple[str, ...] = Field((), description="Machines that trained what no commit names, a sentence each.")


class SliceScore(Frozen):
    """Bits per byte on one held-out slice: the model and two baselines on the same bytes."""

    bytes: int
    model: float
    gzip: float
    trigram: float


class EvaluationFacts(Frozen):
    """Scores by bucket."""

    slices: Mapping[str, SliceScore]


class ProbeWorth(Frozen):
    """Whether a probe's score can be told from noise: `plinth.evaluation.probes.noise`."""

    items: int
    signal: float
    snr: float | None = Field(description="None: the noise is not known.")
    decides: bool = Field(description="A positive signal, and a signal-to-noise ratio of at least 1.")


class ProbeFacts(Frozen):
    """Probes by name."""

    probes: Mapping[str, ProbeWorth]


class TaskScore(Frozen):
    """How much of a task was measured."""

    documents: int
    damaged: int = 0


class TaskFacts(Frozen):
    """Tasks by name, over all task sets."""

    tasks: Mapping[str, TaskScore]


class PairedLine(Frozen):
    """A paired difference, candidate minus champion, with the ends of its interval."""

    kind: str = Field(description="`slices`, `probes`, `tasks`, `fairness`, …: what was measured.")
    measure: str
    slice: str = Field(description="`all`, or a label such as `bucket web`.")
    fewer_is_better: bool
    clusters: int = Field(description="What was sampled: documents, templates, items.")
    value: float
    low: float
    high: float

    @property
    def worse_at_most(self) -> float:
        """Upper bound of how much worse the candidate is, in the unit of the measure."""
        return self.high if self.fewer_is_better else -self.low


class BitsInterval(Frozen):
    """A difference in bits over pairs of texts, as the ends of its interval."""

    pairs: int
    low: float
    high: float

    @property
    def either_way(self) -> float:
        """Upper bound of the difference, whichever sign it has."""
        return max(abs(self.low), abs(self.high))


class ComparisonFacts(Frozen):
    """The candidate beside another model that was measured alike."""

    candidate: str = Field(description="Digest of the checkpoint.")
    champion: str = Field(description="Digest of the other checkpoint.")
    lines: tuple[PairedLine, ...]


class ContaminationFacts(Frozen):
    """Training documents, and those of them that overlap the held-out set."""

    documents: int
    contaminated: int


class ExtractedShare(Frozen):
    """Training text of a slice that the model continues word for word or nearly."""

    windows: int = Field(description="Documents tried.")
    at_most: float = Field(description="Upper limit of the share.")


class ExtractionFacts(Frozen):
    """Extraction by slice of risk; `all` are documents of any kind."""

    slices: Mapping[str, ExtractedShare]


class CanaryFacts(Frozen):
    """What is known of planted texts."""

    planted: int
    p_values: Mapping[int, float] = Field(
        description="By repetitions: probability of exposures so large, had the model not seen these canaries."
    )
    epsilon: float = Field(description="What the coins prove of the run at least.")


class MemorisationFacts(Frozen):
    """Two measurements, each may be absent."""

    extraction: ExtractionFacts | None = None
    canaries: CanaryFacts | None = None


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


class WrittenPii(Frozen):
    """Personal data in what a checkpoint writes."""

    unprompted: PiiShare = Field(description="Texts without a prompt.")
    invited: PiiShare = Field(description="Continuations of prompts that invite personal data.")
    memorised: PiiShare = Field(description="Of all of them, those in which some of it stands in training text.")
    detector: str = Field("", description="Its name and version.")


class PiiFacts(Frozen):
    """Personal data in training text after its edits, and in what the model writes."""

    data: PiiShare | None = None
    outputs: WrittenPii | None = None


class GrantedUses(Frozen):
    """The uses that the owner of a source permits, and how much of the source entered."""

    documents: int
    train: bool
    redistribute: bool
    commercial: bool


class LicenceFacts(Frozen):
    """Rights in the training text."""

    documents: Mapping[str, int] = Field(description="Training documents by SPDX expression.")
    permitted: tuple[str, ...] = Field((), description="What the recipe permits.")
    sources: Mapping[str, GrantedUses] = Field(default_factory=dict, description="Declared terms by source.")


class ToleranceFacts(Frozen):
    """How far a replay was from the run, beside how far two replays were from each other: relative differences."""

    differences: Mapping[str, float] = Field(description="Between original and replay, by quantity.")
    bounds: Mapping[str, float] = Field(description="Of each quantity, from what two replays differ by.")
    hardware: tuple[str, ...] = Field(description="Of each rank, where it was measured.")
    method: str
    faults: tuple[str, ...] = Field((), description="Why the replay does not hold within them, where it does not.")

    @classmethod
    def of(cls, measured: Tolerance) -> ToleranceFacts:
        """The facts of a proof."""
        return cls(
            differences={name: one.difference for name, one in measured.bounds.items()},
            bounds={name: one.bound for name, one in measured.bounds.items()},
            hardware=measured.hardware,
            method=measured.method,
            faults=measured.faults,
        )


class ResumeFacts(Frozen):
    """The replay of a resumed run."""

    bit_exact: bool
    compared_steps: int
    faults: tuple[str, ...] = Field((), description="Why the replay is not bit for bit equal, where it is not.")
    tolerance: ToleranceFacts | None = Field(
        None,
        description="What was measured where it is not.",
        exclude_if=lambda given: given is None,
    )


class StabilityFacts(Frozen):
    """Events of the run by kind: restarts, interventions, refused checkpoints, diverged steps."""

    events: Mapping[str, int]


class ToxicityFacts(Frozen):
    """Continuations that the corpus's own annotator calls toxic."""

    continuations: int
    at_most: float = Field(description="Upper limit of their share.")


class BiasFacts(Frozen):
    """Differences between groups, by attribute, and toxicity of continuations where it was judged."""

    attributes: Mapping[str, BitsInterval] = Field(description="Bits by which group a is favoured, by attribute.")
    toxicity: ToxicityFacts | None = None


class CostFacts(Frozen):
    """What the run cost, such as `wall_s`, `tokens`, `device_hours`."""

    amounts: Mapping[str, float]


class Approval(Frozen):
    """One person's decision, and how it was expressed."""

    by: str
    decision: Literal["approved", "rejected"]
    reason: str
    how: Literal["statement", "tag"]
    key: str = Field("", description="Identity of the key that signed; empty for a tag.")
    policy: str = Field("", description="Digest of the gate policy that governed then; empty for a tag of anybody.")
    proxy: str = Field("", description="Owner of the key of the server that states whose tag it is; empty: anybody's.")
    after: int = Field(
        0,
        ge=0,
        exclude_if=lambda given: not given,
        description="Number of the release record that ended the candidate's promotion before; 0: it had none.",
    )


class Evidence(Frozen):
    """The evidence that the gates read. None: there is no such evidence, so its gate fails.

    Found by whoever judges: `signature`, `lineage`, `code`, `taints`, `champion`, `parent`, `expected_slices`,
    `error_budgets`, decisions of people. All others are attested, a field for each kind.
    """

    signature: CheckResult | None = None
    lineage: CheckResult | None = None
    code: CodeFacts | None = None
    taints: tuple[str, ...] | None = None
    champion: str | None = Field(None, description="Digest of the champion's checkpoint; empty: nothing is released.")
    parent: str | None = Field(None, description="Digest of what the run began from; empty: of random weights.")
    expected_slices: tuple[str, ...] = ()
    miscounted: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="By piece of evidence: figures that its own tables do not give."
    )

    evaluation: EvaluationFacts | None = None
    probes: ProbeFacts | None = None
    tasks: TaskFacts | None = None
    comparison: ComparisonFacts | None = None
    contamination: ContaminationFacts | None = None
    memorisation: MemorisationFacts | None = None
    pii: PiiFacts | None = None
    licences: LicenceFacts | None = None
    resume: ResumeFacts | None = None
    stability: StabilityFacts | None = None
    bias: BiasFacts | None = None
    cost: CostFacts | None = None

    error_budgets: tuple[ErrorBudget, ...] | None = Field(None, description="Of the pipeline, now.")

    requested_by: str | None = None
    approvals: tuple[Approval, ...] | None = None
    approval_faults: tuple[str, ...] = ()
