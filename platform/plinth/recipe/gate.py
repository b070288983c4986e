"""Gates of installed packages: the record that describes one, and where they are found.

Built-in gates, the evidence, and the evaluation of both are in `registry.gates`, which stands above this package. The
signed gate policy of a release names the gates that are asked (`registry.policy`); no recipe does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen

#: Names of the built-in gates, in the order in which they are asked.
BUILT_IN = (
    "signature", "lineage", "beats_gzip", "beats_trigram", "max_bits_per_byte", "slices", "probes", "tasks",
    "contamination", "extraction", "canaries", "pii_data", "pii_outputs", "licence", "terms", "resume", "stability",
    "bias", "toxicity", "cost", "error_budget", "taint", "approvals",
)  # fmt: skip


class GateVerdict(Frozen):
    """What a gate decided, why, and the numbers on which it rests."""

    passed: bool
    reason: str
    evidence: Mapping[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Gate:
    """A pure function from parameters and evidence to a verdict.

    Args:
        name: key in `extensions` of the policy, and name of the result.
        description: one sentence.
        needs: fields of `registry.gates.Evidence`; where one of them is missing, the gate fails without being asked.
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
    {"compressed": "registry.gates.compressed:GATE", "forgetting": "registry.gates.forgetting:GATE"},
    reserved=BUILT_IN,
)
