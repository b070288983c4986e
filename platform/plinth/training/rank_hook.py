"""The part of a training hook that runs on each rank: methods that the loop calls, in the order that `hooks` describes.
It imports no torch.
"""

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
    """The part of a training feature on one rank. Override the methods that the feature needs. Methods that are not
    overridden are not called.

    All ranks call the same methods in the same order, so a method may be a collective. Methods within a step must not
    wait for the device (`.item()`, `print` of a tensor). The exception is `after_step`, which is called after the host
    has read the step.
    """

    def attach(self, engine: TrainingEngine) -> None:
        """Attach to a new engine. This is called at the start, and after a rollback to the beginning of the run."""

    def reset(self) -> None:
        """Reset to the state before the first step."""

    def state(self) -> Mapping[str, Any]:
        """Return the feature's state for a checkpoint: plain data that depends only on the steps taken."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state in a checkpoint."""

    def saved(self, state: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """Return the timeline event and its fields to log after a checkpoint with this state."""

    def before_step(self, step: int) -> None:
        """Prepare for a step before the step takes its batch.

        Raises:
            TrainingError: the step must not be taken.
        """

    def inputs(self, batch: StepBatch, micro: int, inputs: ModelInput, whole: bool) -> Mapping[str, Any]:
        """Return additional arguments for the model's forward pass on micro batch number `micro`, counted from 0.

        Args:
            inputs: the micro batch on the device.
            whole: True if each row of the micro batch is one document.
        """
        return {}

    def loss(self, loss: Tensor, inputs: ModelInput) -> Tensor:
        """Return the training loss of a micro batch, given the model's own loss. Both losses are means over the scored
        targets."""
        return loss

    def gradient(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Return the loss of the step (FP64) and the scalar to backpropagate. This replaces the forward and backward
        passes over micro batches.

        At most one hook of a run can override this method. `inputs` and `loss` of the other hooks are then not called.
        """
        raise AssertionError("called without an override")

    def after_backward(self, loss: Tensor) -> None:
        """Handle the complete gradient of the step, before the update.

        Args:
            loss: loss of this rank (FP64, on the device).
        """

    def after_step(self, measured: Measured) -> Mapping[str, float]:
        """Return metrics of a finished step. The timeline and all sinks show them as `NAME/metric`."""
        return {}

    def due(self, step: int) -> bool:
        """Return True if work after this step is pending, so that the run must not continue or end yet."""
        return False

    def settle(self, step: int, asked_to_stop: Callable[[], int]) -> tuple[str, Mapping[str, Any]] | int:
        """Finish the work that is pending after a step. Return the event for the timeline, or the signal that ended the
        wait.

        All ranks must call this.

        Args:
            asked_to_stop: returns the signal that this rank has received, or 0.
        """
        raise AssertionError("called without an override")

    def adopt(self, step: int) -> Any:
        """In a replay, adopt the outcome of the work that the original run finished after the same step."""
