"""The sinks of a run, as a recipe sets them. Not part of identity."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen


class Sinks(Frozen):
    """Where a run's numbers go besides its timeline, page and MLflow."""

    tensorboard: bool = Field(
        False, description="Write event files into the run's `sinks/tensorboard` (extra `tensorboard`)."
    )
    wandb: str = Field("", description="Project of Weights & Biases, or `entity/project` (extra `wandb`); empty: none.")
    wandb_mode: Literal["online", "offline"] = Field(
        "online", description="`offline` writes into the run's `sinks/wandb`, for `wandb sync`."
    )
    prometheus: bool = Field(
        False, description="Keep `sinks/plinth.prom` in the run's directory, for node_exporter's textfile collector."
    )

    @property
    def any(self) -> bool:
        """Whether there is any sink."""
        return self.tensorboard or bool(self.wandb) or self.prometheus
