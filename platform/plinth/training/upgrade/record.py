"""The request to compare new code with the code of a run, and the comparison as it is signed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.text import counted
from plinth.training.directory import RunDirectory

#: Largest accepted increase of the loss by all changes of a run's code together, in nats per token: a thousandth, less
#: than other seeds differ.
MAX_INCREASE = 0.001

#: Events of a run: new code has taken over, or was refused. They have the fields of `CodeComparison`.
UPGRADED: Final = "upgraded"
REFUSED: Final = "upgrade_refused"

UpgradeVerdict = Literal["bit-equal", "measured", "no worse", "undecided", "worse", "other decisions"]


class CodeComparison(Frozen):
    """Comparison of new code with the code that trained a run: both took the same steps from the same state."""

    before: str = Field(description="Identity of the earlier software (`HostFacts.trains_with`).")
    after: str = Field(description="Identity of the new software.")
    from_step: int = Field(ge=0, description="Step of the checkpoint from which both started.")
    to_step: int = Field(ge=1, description="Step of the last committed checkpoint that was compared.")
    steps: int = Field(ge=0, description="Number of steps that were compared.")
    verdict: UpgradeVerdict
    difference: float | None = Field(None, description="Mean loss of the new code minus that of the earlier, in nats.")
    low: float | None = Field(
        None, description="Lower end of the 95% interval of `difference`, or of a step's difference if `measured`."
    )
    high: float | None = Field(None, description="Upper end of that interval.")
    parameters: float = Field(0.0, description="Largest absolute difference of a parameter at `to_step`.")
    max_increase: float = Field(ge=0, description="Largest accepted upper end, in nats per token: of what the run may "
                                "lose by all changes of its code, the part that earlier ones have left.")  # fmt: skip
    evidence_sha256: str = Field(description="SHA-256 of the compared values, a file in the run's `audits/`.")

    @property
    def accepted(self) -> bool:
        """True if the new code may continue the run."""
        return self.verdict in ("bit-equal", "measured", "no worse")

    @property
    def increase(self) -> float:
        """Increase of the loss that counts toward the limit of a run, in nats per token. A code that is better counts
        as 0, so that it buys nothing for the next one."""
        return max(0.0, self.high or 0.0) if self.accepted else 0.0

    @property
    def in_words(self) -> str:
        """The verdict and the number of steps. If the values differ, also the difference of the loss."""
        said = f"{self.verdict} over {counted(self.steps, 'step')}"
        if self.difference is None:
            return said
        return (
            f"{said}: loss {self.difference:+.2g} ({self.low:+.2g} to {self.high:+.2g}) nats, "
            f"parameters up to {self.parameters:.2g}"
        )


def comparison_of(event: Mapping[str, Any]) -> CodeComparison:
    """Return the comparison that an event `UPGRADED` or `REFUSED` has."""
    return CodeComparison.model_validate({name: event[name] for name in CodeComparison.model_fields if name in event})


class UpgradeRequest(Frozen):
    """Request to the next job: compare its code with the code of the run before it trains."""

    from_step: int = Field(ge=1, description="Replay from the newest checkpoint up to this step.")
    max_increase: float = Field(MAX_INCREASE, ge=0, description="Limit for all changes of the code together, in nats.")


def ask(run: RunDirectory, request: UpgradeRequest) -> None:
    """Ask the next job of the run to compare its code."""
    write_bytes(run.upgrade, request.model_dump_json().encode())


def requested(run: RunDirectory) -> UpgradeRequest | None:
    """Return the request to this job, or None."""
    with contextlib.suppress(FileNotFoundError):
        return UpgradeRequest.model_validate_json(run.upgrade.read_bytes())
    return None
