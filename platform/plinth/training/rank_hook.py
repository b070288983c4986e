"""The part of a training hook on one rank: what the loop calls, in the order that `hooks` lists. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from plinth.training.data import StepBatch
    from plinth.training.engine.batches import ModelInput
    from plinth.training.engine.engine import TrainingEngine
    from plinth.training.engine.skipped_update import Measured


class RankHook:
    """The part of a feature on one rank. Override what it needs; a method that is left out costs a step nothing.

    All ranks call the same methods in the same order, so a method may be a collective. Nothing in a step may wait for
    the device (`.item()`, `print` of a tensor) but `after_step`, whose step has been read.
    """

    def attach(self, engine: TrainingEngine) -> None:
        """A new engine: at the start, and after a rollback to the beginning."""

    def reset(self) -> None:
        """The run is before its first step again."""

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint holds of the feature: plain data, a function of the steps taken."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state in a checkpoint."""

    def saved(self, state: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """The event of the timeline, with its fields, after a checkpoint with this state."""

    def before_step(self, step: int) -> None:
        """Before a step takes its batch.

        Raises:
            TrainingError: it must not be taken.
        """

    def inputs(self, batch: StepBatch, micro: int, inputs: ModelInput, whole: bool) -> Mapping[str, Any]:
        """Further arguments of the model's forward pass on micro batch number `micro`, from 0.

        Args:
            inputs: the micro batch on the device.
            whole: its rows are of one document each.
        """
        return {}

    def loss(self, loss: Tensor, inputs: ModelInput) -> Tensor:
        """The loss of a micro batch that is trained on, from the loss of the model: a mean over its scored targets."""
        return loss

    def gradient(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """In place of the passes over micro batches: the loss of the step (FP64), and the scalar to go backward from.

        One hook of a run may have it; the others' `inputs` and `loss` are then not asked.
        """
        raise AssertionError("a hook that has this is asked")

    def after_backward(self, loss: Tensor) -> None:
        """The gradient of the step is complete, and no update made yet.

        Args:
            loss: of this rank (FP64, on the device).
        """

    def after_step(self, measured: Measured) -> Mapping[str, float]:
        """Numbers of a step that was read, for the timeline and all sinks; there they are `NAME/number`."""
        return {}

    def due(self, step: int) -> bool:
        """True if the run owes something after this step before it may go on, or end; False once that is settled."""
        return False

    def settle(self, step: int, asked_to_stop: Callable[[], int]) -> tuple[str, Mapping[str, Any]] | int:
        """Do what is due after a step; the event of the timeline, or the signal that ended the wait. A collective.

        Args:
            asked_to_stop: the signal that this rank has received, or 0.
        """
        raise AssertionError("a hook that has this is asked")

    def adopt(self, step: int) -> Any:
        """In a replay: take the outcome of what was settled after this step."""
