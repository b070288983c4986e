"""Gates of installed packages: the record that describes one, and where they are found.

Built-in gates, the evidence, and the evaluation of both are in `plinth_registry.gates`, above this package.
The signed gate policy of a release names the gates that are asked (`plinth_registry.policy`); no recipe does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen

#: Names of the built-in gates, in the order in which they are asked.
BUILT_IN = (
    "signature", "lineage", "beats_gzip", "beats_trigram", "max_bits_per_byte", "slices", "probes", "tasks",
    "contamination", "extraction", "canaries", "pii_data", "pii_outputs", "licence", "terms", "resume", "stability",
    "bias", "toxicity", "cost", "error_budget", "taint", "approvals",
)  # fmt: skip


#: State of a gate. `skipped`: the sample is too small to decide. `not applicable`: the gate has nothing to compare.
#: Neither is a pass. `waived` is set from a signed waiver only, never by a gate.
GateState = Literal["passed", "waived", "skipped", "not applicable", "pending", "failed"]
#: States that block promotion.
BLOCKING: Final[tuple[GateState, ...]] = ("failed", "pending")


class GateVerdict(Frozen):
    """Decision of a gate: its state, the reason and the numbers behind it.

    Give `passed` or `state`, and the other follows; records written before there were states have `passed` alone.
    """

    passed: bool = False
    state: GateState = "failed"
    reason: str
    evidence: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        if "state" not in given:
            other = "waived" if given.get("waived") else "failed"
            return {**given, "state": "passed" if given.get("passed") else other}
        return {"passed": given["state"] == "passed", **given}

    @model_validator(mode="after")
    def _agree(self) -> GateVerdict:
        if self.passed != (self.state == "passed"):
            raise ValueError(f"passed is {self.passed}, but the state is {self.state}")
        return self

    @property
    def blocks(self) -> bool:
        """True if the gate blocks promotion."""
        return self.state in BLOCKING


@dataclass(frozen=True)
class Gate:
    """A pure function from parameters and evidence to a verdict.

    Args:
        name: key in `extensions` of the policy, and name of the result.
        description: one sentence.
        needs: fields of `plinth_registry.gates.Evidence`; where one is missing, the gate fails without being asked.
        judge: `(parameters, evidence) -> verdict`. An exception fails the gate.
        params: frozen model of the parameters in the policy.
        of_exports: it judges forms of a release that are about to be exported, not candidates.
    """

    name: str
    description: str
    needs: tuple[str, ...]
    judge: Callable[[Any, Any], GateVerdict]
    params: type[Frozen] = NoParams
    of_exports: bool = False


#: Gates that a policy asks under `extensions`: ours, and those of installed packages (entry points `plinth.gates`).
GATES = Catalogue(
    "plinth.gates",
    "gate",
    Gate,
    {"compressed": "plinth_registry.gates.compressed:GATE", "forgetting": "plinth_registry.gates.forgetting:GATE"},
    reserved=BUILT_IN,
)
