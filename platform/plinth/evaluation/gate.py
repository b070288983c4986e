"""Gates: the record that describes one, and the catalogue in which all are found.

The gates of this repository and those of installed packages have the same form. The signed gate policy of a release has
their parameters (`plinth_registry.policy`); no recipe does. Evidence, and how gates are asked: `plinth_registry.gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen

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


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A pure function from parameters and evidence to a verdict.

    A gate with a section is asked of every candidate, unless the policy leaves it out with a reason. One without is
    asked where the policy names it under `extensions`, as gates of other packages are.

    Args:
        name: of the result, and key in `extensions`.
        description: one sentence.
        needs: measurements, or fields of `plinth_registry.gates.Evidence`, without which the gate fails unasked.
        judge: `(parameters, evidence) -> verdict`. An exception fails a gate that is asked by name.
        params: frozen model of the parameters in the policy.
        of_exports: it judges forms of a release that are about to be exported, not candidates.
        section: key of the policy that has the parameters; gates may share one.
        always: no policy leaves it out, and no waiver lifts it.
        rests_on: evidence whose figures are counted again before the gate may pass; by default what it needs.
        keys: dotted keys of the recipe without which there is no evidence, beside those of the measurements.
        find: `(context, parameters)` -> evidence that the gate itself finds in the workspace now, as `Evidence.own`.
        shown: False: the dump of a policy has the section only where it is not as by default.
    """

    name: str
    description: str
    judge: Callable[[Any, Any], GateVerdict]
    params: type[Frozen] = NoParams
    needs: tuple[str, ...] = ()
    of_exports: bool = False
    section: str = ""
    always: bool = False
    rests_on: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    find: Callable[[Any, Any], Any] | None = None
    shown: bool = True

    @property
    def by_name(self) -> bool:
        """True if it is asked only where the policy names it."""
        return not (self.section or self.always)

    @property
    def counted(self) -> tuple[str, ...]:
        """Evidence whose figures must be those of its tables."""
        return self.rests_on or self.needs


def release_gate(
    judge: Callable[[Any, Any], GateVerdict],
    params: type[Frozen] = NoParams,
    section: str = "",
    rests_on: tuple[str, ...] = (),
    **more: Any,
) -> Gate:
    """A gate of every candidate, with the name of its function and the first paragraph of its docstring."""
    description = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
    own: dict[str, Any] = {"params": params, "section": section, "rests_on": rests_on}
    return Gate(name=judge.__name__, description=description, judge=judge, **own, **more)


_ORIGIN, _OURS = "plinth_registry.gates.origin", "plinth_assets.measurements"
#: All gates, in the order in which they are asked; those of installed packages (entry points `plinth.gates`) follow.
GATES = Catalogue(
    "plinth.gates",
    "gate",
    Gate,
    {
        "signature": f"{_ORIGIN}:SIGNATURE",
        "lineage": f"{_ORIGIN}:LINEAGE",
        "beats_gzip": f"{_OURS}.quality:BEATS_GZIP",
        "beats_trigram": f"{_OURS}.quality:BEATS_TRIGRAM",
        "max_bits_per_byte": f"{_OURS}.quality:MAX_BITS_PER_BYTE",
        "slices": f"{_OURS}.quality:SLICES",
        "probes": f"{_OURS}.quality:PROBES_GATE",
        "tasks": f"{_OURS}.quality:TASKS_GATE",
        "contamination": f"{_ORIGIN}:CONTAMINATION",
        "pii_data": f"{_OURS}.pii:GATE",
        "licence": f"{_ORIGIN}:LICENCE",
        "terms": f"{_ORIGIN}:TERMS",
        "resume": f"{_ORIGIN}:RESUME",
        "stability": f"{_ORIGIN}:STABILITY",
        "cost": f"{_ORIGIN}:COST",
        "taint": f"{_ORIGIN}:TAINT",
        "approvals": "plinth_registry.gates.origin:APPROVALS_GATE",
        "compressed": "plinth_registry.gates.margins:COMPRESSED_GATE",
        "forgetting": "plinth_registry.gates.margins:FORGETTING_GATE",
    },
)
