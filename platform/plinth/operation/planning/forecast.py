"""What the planner foretold of a run before it was submitted, kept in the run's folder and never written again.

A forecast is of a step's computation, bubble and exposed communication, on the device that the budget's settings name,
else on the one that this machine has. Where neither is known there is none.
"""

from __future__ import annotations

import time
from typing import Literal

from pydantic import ValidationError

from plinth.errors import IntegrityError
from plinth.operation.planning import ranking
from plinth.operation.planning.efficiency import STATED, Efficiency
from plinth.operation.planning.machine import CPU, PlannedDevice
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training import hooks
from plinth.training.config import RunConfig


class Forecast(Frozen):
    """Seconds of a step: at the middle of the efficiencies, the best and the worst.

    Attributes:
        made: Unix seconds.
        device: by its name in the table, or `cpu`.
        efficiency: assumed; memory_bytes: of the rank that needs most.
    """

    made: float
    device: str
    efficiency: Efficiency
    step_s: float
    low_s: float
    high_s: float
    memory_bytes: int

    def error(self, measured_s: float) -> float:
        """What was foretold, over what was measured, less 1: below 0 where the run was slower."""
        return self.step_s / measured_s - 1


def work_of(config: RunConfig, batch: int | None = None, length: int | None = None) -> ranking.TrainingWork:
    """What a run trains, in the planner's terms.

    Args:
        batch: sequences of a step, where schedules change them; the largest of the run when None.
        length: tokens of a sequence.
    """
    precision: Literal["fp32", "bf16"] = "fp32" if config.precision == "fp32" else "bf16"
    return ranking.TrainingWork(
        config.model, config.vocab_size, length or config.sequence_tokens, batch or max(config.steps.batches),
        precision, config.parallel, config.optimizer, private=hooks.one_by_one(config),
    )  # fmt: skip


def foretell(config: RunConfig, on: PlannedDevice, efficiency: Efficiency = STATED) -> Forecast:
    """The planner's numbers for a run as it is divided."""
    work = work_of(config)
    if on.name == CPU and config.precision == "auto":
        work = work._replace(precision="fp32")
    micro, ranks = config.micro_batch_sequences, config.ranks
    one = ranking.of_block(work, config.parallel, micro, ranks, on.device, efficiency.middle)
    low, high = ranking.span(one, efficiency)
    return Forecast(
        made=time.time(), device=on.name, efficiency=efficiency, step_s=one.step_s, low_s=low, high_s=high,
        memory_bytes=one.memory_bytes,
    )  # fmt: skip


def keep(config: RunConfig, made: Forecast) -> None:
    """Write a run's forecast, unless it has one: what was foretold before its first job is what counts."""
    path = config.directory.forecast
    if not path.exists():
        write_bytes(path, made.model_dump_json(indent=1).encode() + b"\n")


def read(config: RunConfig) -> Forecast | None:
    """What was foretold of a run; None: nothing.

    Raises:
        IntegrityError: the file is damaged.
    """
    try:
        return Forecast.model_validate_json(config.directory.forecast.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as cause:
        raise IntegrityError(
            f"the forecast of run {config.run_id} cannot be read", found=str(cause), remedy="delete forecast.json"
        ) from cause
