"""Gate policy of a release: settings of each gate, approvers, and omitted gates with reasons.

A policy covers every gate. An omitted gate is listed in `without` with a reason, which every verdict repeats. Gates
that verify the candidate itself cannot be omitted. Gates of measurements add their own keys (`policy_model`). For
signing and lookup of policies, see `plinth_registry.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator

from plinth.entry_points import absent
from plinth.evaluation.measurement import GATES, Gate
from plinth.records import Frozen
from plinth.training.forensics.order_proof import MAX_CHANCE
from plinth.training.forensics.proof import ToleranceClass

SHORTEST_REASON: Final = 10
#: The gate of approvals, evaluated last.
APPROVALS: Final = "approvals"


@lru_cache(maxsize=1)
def release_gates() -> Mapping[str, Gate]:
    """Return the gates that every candidate must pass unless the policy omits them, in order of evaluation."""
    return {name: GATES[name] for name in GATES.built_in if not GATES[name].by_name}


def absent_gates() -> Mapping[str, str]:
    """Return the gates that belong to an extension package that is not installed, with the name of the package. Each of
    these gates fails unless the policy omits it."""
    return absent(GATES.group)


def absent_key(key: str) -> str:
    """Return the missing package that would provide all gates with this policy key, or an empty string. For example,
    the key `pii` belongs to the gate `pii_data`."""
    return next((package for name, package in absent_gates().items() if name == key or name.startswith(f"{key}_")), "")


@lru_cache(maxsize=1)
def always() -> tuple[str, ...]:
    """Return the gates that a policy cannot omit and a waiver cannot lift."""
    return tuple(name for name, gate in release_gates().items() if gate.always)


Use = Literal["train", "redistribute", "commercial"]


class LineagePolicy(Frozen):
    """Requirements on the origin of the model. Complete lineage and the trainer's statements are always required."""

    clean_commit: bool = Field(
        False, description="Require every attempt to run at a clean git commit on every machine."
    )
    max_code_increase: float | None = Field(
        None,
        ge=0,
        description="Require that every change of code in the run was compared (`plinth run upgrade`), and that the "
        "upper ends of the 95% intervals of their loss increases add up to at most this, in nats per token; 0 for "
        "equal bits, and a step's largest increase for measured noise.",
    )


class SlicePolicy(Frozen):
    """Limits on held-out text. Every slice with enough documents must be non-inferior: the upper end of the 95%
    interval of candidate minus champion is below the margin. All slices must pass, so their number needs no statistical
    correction."""

    max_bits_per_byte: float | None = Field(
        None, gt=0, description="Maximum bits per byte of the slice of every bucket."
    )
    margin: float = Field(
        0.02, ge=0, description="Maximum regression of a slice against the champion, in bits per byte."
    )
    margins: Mapping[str, float] = Field(
        default_factory=dict,
        description="Margins by slice label, such as `bucket web`; `all` is the held-out text as a whole.",
    )
    min_documents: int = Field(
        10, ge=2, description="Slices with fewer documents than this are listed, but not judged."
    )


class ProbePolicy(Frozen):
    """Limits on probes with a signal-to-noise ratio of at least 1."""

    margin: float = Field(0.05, ge=0, description="Maximum regression of a probe against the champion.")
    min_templates: int = Field(
        10, ge=2, description="Probes with fewer templates than this are listed, but not judged."
    )
    none_decides: Literal["passes", "fails"] = Field(
        "fails", description="Result of the gate if no probe exceeds its noise."
    )


class TaskPolicy(Frozen):
    """Limits on tasks and their metrics."""

    margin: float = Field(0.05, ge=0, description="Maximum regression of a metric against the champion.")
    min_items: int = Field(10, ge=2, description="Tasks with fewer items than this are listed, but not judged.")


class ContaminationPolicy(Frozen):
    """Limit on the overlap of training text with the held-out set."""

    max_documents: int = Field(0, ge=0, description="Maximum number of training documents that overlap held-out text.")


class LicencePolicy(Frozen):
    """Requirements on the licenses of documents and the terms of sources."""

    permitted: tuple[str, ...] | None = Field(
        None,
        description="SPDX identifiers that the policy permits, checked in addition to the recipe's list. If null, only "
        "the recipe's list applies.",
    )
    uses: tuple[Use, ...] = Field(
        ("train",), min_length=1, description="Uses that the terms of every source must grant."
    )


class ResumePolicy(Frozen):
    """Requirements on the replay of a resumed run."""

    min_steps: int = Field(1, ge=1, description="Minimum number of steps that the resume proof compares.")
    classes: tuple[Literal[ToleranceClass, "order", "unproved"], ...] = Field(
        ("bit-equal",),
        min_length=1,
        description="Accepted proofs: `bit-equal`; `measured` for nondeterministic kernels, which allows a multiple of "
        "the difference between two replays on the same hardware. For runs of your own trainer: `order` if the "
        "losses of sampled steps prove order and data; `unproved` in any case.",
        exclude_if=lambda given: given == ("bit-equal",),
    )
    max_bound: float = Field(
        1e-2,
        gt=0,
        lt=1,
        description="Maximum relative tolerance that a `measured` proof may have.",
        exclude_if=lambda given: given == 1e-2,
    )
    max_corruption: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Maximum share of steps with silent data corruption, by the upper limit at 95% that replays of "
        "sampled steps support (`training.replay_checks`). If null, it is not limited.",
        exclude_if=lambda given: given is None,
    )
    max_chance: float = Field(
        MAX_CHANCE,
        gt=0,
        lt=1,
        description="Highest probability at which a shuffled order explains the losses of an `order` proof.",
        exclude_if=lambda given: given == MAX_CHANCE,
    )


class StabilityPolicy(Frozen):
    """Limit on interventions and restarts of the run."""

    max_events: int = Field(20, ge=0, description="Maximum number of run events of all kinds.")


class CostPolicy(Frozen):
    """Cost amounts that must be recorded."""

    amounts: tuple[str, ...] = Field(("wall_s", "tokens"), min_length=1, description="Required amounts, each above 0.")


class PrometheusPolicy(Frozen):
    """Two PromQL expressions with one series each, evaluated at the same times."""

    url: str = Field(
        pattern=r"^https?://[^\s@?#]+$", description="Address of the Prometheus server, without `/api/v1`."
    )
    canary: str = Field(min_length=1, description="Prometheus expression of the canary's value.")
    champion: str = Field(min_length=1, description="Prometheus expression of the champion's value.")
    step_s: int = Field(
        60,
        ge=1,
        description="Seconds between two pairs of values. Pairs are correlated if this is shorter than the rate "
        "window.",
    )


class FeedPolicy(Frozen):
    """Metric of the release owner, from appended JSON lines or from two Prometheus queries. The metric is unsigned."""

    lines: str | None = Field(
        None, min_length=1, description="File or folder of `*.jsonl`; relative to the workspace, or absolute."
    )
    prometheus: PrometheusPolicy | None = Field(
        None, description="Prometheus server that has the values of canary and champion."
    )

    @model_validator(mode="after")
    def _from_one_place(self) -> FeedPolicy:
        if (self.lines is None) == (self.prometheus is None):
            raise ValueError("a feed needs either lines or prometheus")
        return self


class TrialPolicy(Frozen):
    """Conditions to roll back a canary, or to make it champion, by paired comparison with the champion.

    `margin` is a fraction of the champion's value. Both decisions use the same limit. A canary is rolled back if one
    stream is worse by more than the margin, and may be promoted if every stream is within the margin.
    """

    margin: float = Field(0.005, ge=0, lt=1, description="Maximum regression, as a fraction of the champion's value.")
    level: float = Field(0.95, gt=0.5, lt=1, description="One minus the false alarm rate for an equally good canary.")
    least: int = Field(100, ge=2, description="Minimum number of observations per stream.")
    higher_is_better: tuple[str, ...] = Field((), description="Names of streams in which higher is better.")
    feeds: Mapping[str, FeedPolicy] = Field(
        default_factory=dict,
        description="Metrics of the release owner, by name, in addition to signed evidence.",
        exclude_if=lambda given: not given,
    )
    promote: Literal["at once", "by hand", "automatic"] = Field(
        "at once",
        description="Promotion of an approved candidate if there is a champion. `at once`: it becomes champion. "
        "`by hand`: it becomes the canary, and a person promotes it. `automatic`: it becomes the canary, and is "
        "promoted once it is shown to be within the margin.",
        exclude_if=lambda given: given == "at once",
    )


class ApprovalPolicy(Frozen):
    """Required approvals by people."""

    people: int = Field(1, ge=0, description="Number of different people who must approve.")
    approvers: tuple[str, ...] = Field((), description="People who may approve; if empty, every enrolled approver.")
    two_person: bool = Field(False, description="Require two people with two keys, other than the requester.")
    accepted: tuple[Literal["statement", "tag"], ...] = Field(
        ("statement",),
        min_length=1,
        description="Accepted forms of a decision: a signed statement, or an MLflow tag set after login.",
    )
    proxies: tuple[str, ...] = Field(
        (),
        description="Owners of the login servers' keys (role `approver`) that may sign the author of a tag.",
        exclude_if=lambda given: not given,
    )


class GatePolicy(Frozen):
    """Conditions of a release, written and signed by the release owner."""

    release: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the release.")
    version: int = Field(1, ge=1, description="Version of this policy, which is one more than the previous version.")
    description: str = ""
    first_release: Literal["allowed", "refused"] = Field(
        "allowed", description="Allow or refuse a first release, which has no champion to compare with."
    )
    tainted_champion: Literal["stays", "goes back"] = Field(
        "stays",
        description="Handling of a tainted champion: it stays until a manual rollback, or it is rolled back to the "
        "last good version.",
        exclude_if=lambda given: given == "stays",
    )
    papers: Literal["unsigned", "signed"] = Field(
        "unsigned",
        description="If `signed`, exports require release documents that are signed by compliance.",
        exclude_if=lambda given: given == "unsigned",
    )
    lineage: LineagePolicy = Field(
        LineagePolicy(),
        description="Requirements on lineage.",
        exclude_if=lambda given: given == LineagePolicy(),
    )
    slices: SlicePolicy = SlicePolicy()
    probes: ProbePolicy = ProbePolicy()
    tasks: TaskPolicy = TaskPolicy()
    contamination: ContaminationPolicy = ContaminationPolicy()
    licences: LicencePolicy = LicencePolicy()
    resume: ResumePolicy = ResumePolicy()
    stability: StabilityPolicy = StabilityPolicy()
    cost: CostPolicy = CostPolicy()
    approvals: ApprovalPolicy = ApprovalPolicy()
    trial: TrialPolicy = Field(
        TrialPolicy(),
        description="Conditions for withdrawing or promoting a canary.",
        exclude_if=lambda given: given == TrialPolicy(),
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="Gates of installed packages by name, with their parameters."
    )
    without: Mapping[str, str] = Field(default_factory=dict, description="Omitted gates, each with the reason.")

    @property
    def asked(self) -> tuple[str, ...]:
        """Required gates of every candidate, in order of evaluation; approvals are last."""
        names = (name for name in (*release_gates(), *absent_gates()) if name not in self.without)
        return tuple(sorted(names, key=lambda name: name == APPROVALS))

    def parameters(self, gate: Gate) -> Frozen:
        """Return the parameters of a gate that the policy does not name under `extensions`."""
        found: Frozen = getattr(self, gate.section) if gate.section else gate.params()
        return found

    @field_validator("without")
    @classmethod
    def _left_out_with_a_reason(cls, given: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        for name, reason in given.items():
            if name not in release_gates() and name not in absent_gates():
                raise ValueError(f"no gate {name!r}; expected one of {', '.join(release_gates())}")
            if name in always():
                raise ValueError(f"the gate {name} cannot be omitted")
            if len(reason.strip()) < SHORTEST_REASON:
                raise ValueError(f"the gate {name} is omitted without a reason")
        return given

    @model_validator(mode="after")
    def _every_gate_is_named(self) -> GatePolicy:
        if self.slices.max_bits_per_byte is None and "max_bits_per_byte" not in self.without:
            raise ValueError("set slices.max_bits_per_byte, or omit the gate max_bits_per_byte with a reason")
        return self


def _default(gate: Gate) -> Any:
    """Return the default of a gate's section in the policy model. If a hidden section has its default, it is left out
    of a dump."""
    default = gate.params()
    return default if gate.shown else Field(default, exclude_if=lambda given: given == default)


@lru_cache(maxsize=1)
def policy_model() -> type[GatePolicy]:
    """Build the policy model with an additional key for the gate parameters of each measurement."""
    known = GatePolicy.model_fields
    own = {one.section: (one.params, _default(one)) for one in release_gates().values() if one.section}
    made: type[GatePolicy] = create_model(  # type: ignore[call-overload]
        "GatePolicy", __base__=GatePolicy, **{name: field for name, field in own.items() if name not in known}
    )
    return made


@lru_cache(maxsize=1)
def _signed_model() -> type[GatePolicy]:
    """Build the model for signed policies, which keeps the keys of gates if their package is not installed."""
    if not absent_gates():
        return policy_model()

    class SignedGatePolicy(policy_model()):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

        @model_validator(mode="after")
        def _known(self) -> SignedGatePolicy:
            for key in self.model_extra or {}:
                if not absent_key(key):
                    raise ValueError(f"{key}: unknown key")
            return self

    return SignedGatePolicy


def gate_policy(given: Mapping[str, Any]) -> GatePolicy:
    """Parse a signed policy from plain data.

    Raises:
        ValidationError: a key belongs to no gate, or a value is not allowed.
    """
    return _signed_model().model_validate(given)
