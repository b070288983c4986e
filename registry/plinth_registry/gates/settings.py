"""The gate policy of a release: what each gate asks, who approves, and which gates are left out with a reason.

A policy names every gate: one that is not asked stands in `without` with its reason, which every verdict repeats. What
proves a candidate at all cannot be left out. Gates of measurements have their keys beside those that stand here
(`policy_model`). How a policy is signed and found: `plinth_registry.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator

from plinth.entry_points import absent
from plinth.evaluation.measurement import GATES, Gate
from plinth.records import Frozen
from plinth.training.forensics.proof import ToleranceClass

SHORTEST_REASON: Final = 10
#: The gate of the people who approve, asked last.
APPROVALS: Final = "approvals"


@lru_cache(maxsize=1)
def release_gates() -> Mapping[str, Gate]:
    """Return gates that every candidate must pass, unless the policy omits them, in their order."""
    return {name: GATES[name] for name in GATES.built_in if not GATES[name].by_name}


def absent_gates() -> Mapping[str, str]:
    """Return gates whose ring package is not installed, with the package: one that a policy does not omit fails."""
    return absent(GATES.group)


def absent_key(key: str) -> str:
    """Return the package of a key that only gates of an absent package have: `pii` is that of `pii_data`; or empty."""
    return next((package for name, package in absent_gates().items() if name == key or name.startswith(f"{key}_")), "")


@lru_cache(maxsize=1)
def always() -> tuple[str, ...]:
    """Return gates that no policy omits and no waiver lifts."""
    return tuple(name for name, gate in release_gates().items() if gate.always)


Use = Literal["train", "redistribute", "commercial"]


class LineagePolicy(Frozen):
    """Origin of the model. That it is complete and stated by its trainer is always required."""

    clean_commit: bool = Field(
        False, description="Every attempt ran on every machine at a commit of git, without changes on top of it."
    )


class SlicePolicy(Frozen):
    """Held-out text. Every slice with enough documents must be non-inferior: the upper end of the 95% interval of
    candidate minus champion is below the margin. All must pass, so no correction for their number is needed."""

    max_bits_per_byte: float | None = Field(None, gt=0, description="Absolute bound on the slice of every bucket.")
    margin: float = Field(0.02, ge=0, description="Bits per byte by which a slice may be worse than the champion's.")
    margins: Mapping[str, float] = Field(
        default_factory=dict, description="Other margins, by label, such as `bucket web`; `all` is the whole."
    )
    min_documents: int = Field(10, ge=2, description="A slice of fewer is shown and not judged; the whole always is.")


class ProbePolicy(Frozen):
    """Probes whose signal-to-noise ratio is at least 1."""

    margin: float = Field(0.05, ge=0, description="By how much a probe may be worse than the champion's.")
    min_templates: int = Field(10, ge=2, description="A probe of fewer is shown and not judged.")
    none_decides: Literal["passes", "fails"] = Field("fails", description="Where no probe can be told from noise.")


class TaskPolicy(Frozen):
    """Tasks and their metrics."""

    margin: float = Field(0.05, ge=0, description="By how much a metric may be worse than the champion's.")
    min_items: int = Field(10, ge=2, description="A task of fewer is shown and not judged.")


class ContaminationPolicy(Frozen):
    """Overlap of training text with the held-out set."""

    max_documents: int = Field(0, ge=0, description="Training documents that may still overlap.")


class LicencePolicy(Frozen):
    """Licenses of documents, and terms of sources."""

    permitted: tuple[str, ...] | None = Field(
        None, description="SPDX identifiers, beside the recipe's own list: both must permit. Null: the recipe's alone."
    )
    uses: tuple[Use, ...] = Field(
        ("train",), min_length=1, description="Uses that every source must grant: what the release is made for."
    )


class ResumePolicy(Frozen):
    """Replay of a resumed run."""

    min_steps: int = Field(1, ge=1, description="Steps that must have been compared.")
    classes: tuple[ToleranceClass, ...] = Field(
        ("bit-equal",),
        min_length=1,
        description="Proofs that are accepted: `bit-equal`, and `measured` where kernels are not deterministic: no "
        "further from the run than several times what two replays on the same hardware differ by.",
        exclude_if=lambda given: given == ("bit-equal",),
    )
    max_bound: float = Field(
        1e-2,
        gt=0,
        lt=1,
        description="Largest relative bound that a measured tolerance may have come to.",
        exclude_if=lambda given: given == 1e-2,
    )


class StabilityPolicy(Frozen):
    """Interventions and restarts of the run."""

    max_events: int = Field(20, ge=0, description="Of all kinds together; each is reported.")


class CostPolicy(Frozen):
    """Cost amounts that must be on record."""

    amounts: tuple[str, ...] = Field(("wall_s", "tokens"), min_length=1, description="Names, each above 0.")


class PrometheusPolicy(Frozen):
    """Two expressions of PromQL, of one series each, evaluated at the same times."""

    url: str = Field(pattern=r"^https?://[^\s@?#]+$", description="Where Prometheus answers, without `/api/v1`.")
    canary: str = Field(min_length=1, description="The canary's value.")
    champion: str = Field(min_length=1, description="The champion's value.")
    step_s: int = Field(
        60, ge=1, description="Seconds between pairs: at least the window of its rates, else pairs hang together."
    )


class FeedPolicy(Frozen):
    """Metric of the owner: appended JSON lines, or two queries. It is unsigned."""

    lines: str | None = Field(
        None, min_length=1, description="A file, or a folder of `*.jsonl`; relative to the workspace, or absolute."
    )
    prometheus: PrometheusPolicy | None = Field(None, description="A Prometheus that has both values.")

    @model_validator(mode="after")
    def _from_one_place(self) -> FeedPolicy:
        if (self.lines is None) == (self.prometheus is None):
            raise ValueError("a feed has either lines or prometheus")
        return self


class TrialPolicy(Frozen):
    """Conditions to roll back a canary, or to make it champion, by paired comparison with the champion.

    `margin` is a share of the champion's value. Both decisions use the same limit: proved to be worse by more than it,
    or proved to be no worse than it, in each stream."""

    margin: float = Field(0.005, ge=0, lt=1, description="Share of the champion's value by which it may be worse.")
    level: float = Field(0.95, gt=0.5, lt=1, description="One minus the chance of ever giving back a canary no worse.")
    least: int = Field(100, ge=2, description="Observations of a stream before it is judged.")
    higher_is_better: tuple[str, ...] = Field((), description="Streams in which more is better; else less is.")
    feeds: Mapping[str, FeedPolicy] = Field(
        default_factory=dict,
        description="Metrics of the owner's that are watched beside the signed evidence, by name.",
        exclude_if=lambda given: not given,
    )
    promote: Literal["at once", "by hand", "automatic"] = Field(
        "at once",
        description="What an approved candidate becomes where there is a champion: champion at once, or canary, which "
        "a person makes champion, or which becomes champion when it is proved to be within the margin.",
        exclude_if=lambda given: given == "at once",
    )


class ApprovalPolicy(Frozen):
    """People who must agree."""

    people: int = Field(1, ge=0, description="Different people who must approve.")
    approvers: tuple[str, ...] = Field((), description="Who may approve; empty: every enrolled approver.")
    two_person: bool = Field(False, description="At least two people with two keys, neither of whom asked for the run.")
    accepted: tuple[Literal["statement", "tag"], ...] = Field(
        ("statement",), min_length=1, description="A signed statement, or a tag of MLflow behind its login."
    )
    proxies: tuple[str, ...] = Field(
        (),
        description="Keys (their owners, as approver) of the servers that may state which logged-in person set a tag.",
        exclude_if=lambda given: not given,
    )


class GatePolicy(Frozen):
    """Conditions of a release, written and signed by its owner."""

    release: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="The release that it governs.")
    version: int = Field(1, ge=1, description="Number of this policy: one more than the one that it replaces.")
    description: str = ""
    first_release: Literal["allowed", "refused"] = Field(
        "allowed", description="Whether a release without a champion to compare with may pass."
    )
    tainted_champion: Literal["stays", "goes back"] = Field(
        "stays",
        description="A marked champion stays until somebody rolls back, or goes back to the last good version.",
        exclude_if=lambda given: given == "stays",
    )
    papers: Literal["unsigned", "signed"] = Field(
        "unsigned",
        description="`signed`: a release is exported only with papers that compliance has signed.",
        exclude_if=lambda given: given == "unsigned",
    )
    lineage: LineagePolicy = Field(
        LineagePolicy(),
        description="Where the model comes from.",
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
        description="When a canary is given back.",
        exclude_if=lambda given: given == TrialPolicy(),
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="Gates of installed packages, by name, each with its parameters."
    )
    without: Mapping[str, str] = Field(
        default_factory=dict, description="Gates of every candidate that are not asked, each with the reason."
    )

    @property
    def asked(self) -> tuple[str, ...]:
        """Required gates of every candidate, in order: people last."""
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
                raise ValueError(f"there is no gate {name!r}; there are {', '.join(release_gates())}")
            if name in always():
                raise ValueError(f"the gate {name} cannot be left out")
            if len(reason.strip()) < SHORTEST_REASON:
                raise ValueError(f"the gate {name} is left out without a reason, expected one in a sentence")
        return given

    @model_validator(mode="after")
    def _every_gate_is_named(self) -> GatePolicy:
        if self.slices.max_bits_per_byte is None and "max_bits_per_byte" not in self.without:
            raise ValueError("set slices.max_bits_per_byte, or leave the gate max_bits_per_byte out with a reason")
        return self


def _default(gate: Gate) -> Any:
    """Build the field of a gate's parameters: a hidden section is left out of a dump if it has its default."""
    default = gate.params()
    return default if gate.shown else Field(default, exclude_if=lambda given: given == default)


@lru_cache(maxsize=1)
def policy_model() -> type[GatePolicy]:
    """Build the policy model with a key for the parameters of every gate of a measurement."""
    known = GatePolicy.model_fields
    own = {one.section: (one.params, _default(one)) for one in release_gates().values() if one.section}
    made: type[GatePolicy] = create_model(  # type: ignore[call-overload]
        "GatePolicy", __base__=GatePolicy, **{name: field for name, field in own.items() if name not in known}
    )
    return made


@lru_cache(maxsize=1)
def _signed_model() -> type[GatePolicy]:
    """Build the policy model that keeps keys of gates whose package is not installed."""
    if not absent_gates():
        return policy_model()

    class SignedGatePolicy(policy_model()):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

        @model_validator(mode="after")
        def _known(self) -> SignedGatePolicy:
            for key in self.model_extra or {}:
                if not absent_key(key):
                    raise ValueError(f"{key}: no gate has this key")
            return self

    return SignedGatePolicy


def gate_policy(given: Mapping[str, Any]) -> GatePolicy:
    """Parse a signed policy from plain data.

    Raises:
        ValidationError: a key that no gate has, or a value that is not allowed.
    """
    return _signed_model().model_validate(given)
