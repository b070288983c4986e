"""Statistics of a run besides loss and speed. Not part of its identity: measuring changes nothing."""

from __future__ import annotations

from pydantic import Field, model_validator

from plinth.records import Frozen, internal


class Telemetry(Frozen):
    """What is measured besides loss and speed."""

    layers_every: int = internal(
        10, ge=0, description="Steps between measurements of gradient norm and activations by layer; 0: never."
    )
    stragglers_every: int = Field(
        50, ge=0, description="Steps between comparisons of the ranks' own time, each over as many steps; 0: never."
    )
    straggler_score: float = internal(
        0.75, gt=0, le=1, description="A rank is a straggler below this share of the fastest rank's speed."
    )
    profile_steps: tuple[int, int] | None = Field(
        None,
        description="First and last step of which rank 0 writes a `torch.profiler` trace; a run that is under way is "
        "asked by `plinth run profile`.",
    )
    devices_s: float = internal(30.0, ge=0, description="Seconds between samples of a node's GPUs; 0: errors only.")

    @model_validator(mode="after")
    def _in_order(self) -> Telemetry:
        if self.profile_steps and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            raise ValueError(f"profile_steps {list(self.profile_steps)}: expected the first, from 1 on, and the last")
        return self
