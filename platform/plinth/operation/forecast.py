"""Measurements of past runs in a workspace, and predictions for the next run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from pydantic import ValidationError

from plinth import fingerprint
from plinth.errors import IntegrityError, PlinthError
from plinth.launch import devices
from plinth.model import architectures
from plinth.model.parameters import Model
from plinth.operation import ranking
from plinth.operation.spending import CPU, FAILURES_PER_DEVICE_HOUR, STALL_S, STATED, Efficiency, PlannedDevice
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.text import counted
from plinth.training import attempts, hooks
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.step_clock import StepSeconds, following_steps
from plinth.training.telemetry.timeline import Event, read_events

# Measurements of a workspace's runs: efficiency, saves, restores, failures.
#
#     known(workspace)        every run whose steps can be read, by device
#     efficiency(runs, …)     range of efficiencies of similar runs, or the stated one
#     pauses(runs, …)         stall of a save, time of a restore, failures per device-hour: measured, or assumed
#
# A run is similar to another on the same device if it trains the same model, otherwise a model of a quarter to four
# times its parameters. A rank's efficiency is the planner's own count of FLOPs, with a pipeline's bubble as work, over
# the seconds that it computed and the device's peak: with that efficiency the planner reproduces those seconds.
#
# Measurements of a finished run are cached in its folder (`measured.json`), since timelines are long.

#: Minimum number of steps from which a run's efficiency is measured, and share of steps omitted at each end.
LEAST_STEPS, TAIL = 10, 0.1

#: Maximum ratio of parameters of similar models.
ALIKE = 4

#: Minimum number of failures, recorded or expected at the published rate, for using the recorded failure rate.
FAILURES = 3

#: Assumed seconds of a restore if none is recorded; equal to the limit of `plinth ops sli`.
RESTORE_S = 300.0


# Forecast of a run before its first job, stored in the run's folder and never changed.
#
# A forecast covers a step's computation, bubble and exposed communication, on the device in the budget settings, or
# else on this machine's device. Without a known device there is no forecast.

class Forecast(Frozen):
    """Predicted seconds per step, for the middle, the best and the worst assumed efficiency.

    Attributes:
        made: time of the forecast, Unix seconds.
        device: name in the device table, or `cpu`.
        efficiency: assumed efficiency; memory_bytes: memory of the rank that needs the most.
    """

    made: float
    device: str
    efficiency: Efficiency
    step_s: float
    low_s: float
    high_s: float
    memory_bytes: int

    def error(self, measured_s: float) -> float:
        """Return the relative error (forecast / measurement - 1). It is below 0 if the run was slower than
        predicted."""
        return self.step_s / measured_s - 1


class RecordedRun(Frozen):
    """Measurements of one run.

    Attributes:
        events_bytes: length of the timeline that was measured.
        device: name in the device table, or `cpu`; machine: its fingerprint. An empty string means unknown.
        flops_per_s: FLOP/s per device while computing, in the slowest and the fastest tenth of steps. For CPUs, it is
            the sum over a machine. None if there are too few steps.
        step_s: mean seconds per step of computation, communication, input and host; None if there are too few steps.
        whole_flops_per_s: the same rate as `flops_per_s`, but over all seconds in `step_s` and over all steps.
        saves, stall_s: number of saves, and total seconds that steps waited for them.
        restores, restore_s: number of restores, and their total seconds.
        failures: unplanned ends of attempts; device_hours: hours in which they occurred.
    """

    run: str
    events_bytes: int
    machine: str
    device: str
    model: str
    parameters: int
    flops_per_s: tuple[float, float] | None
    step_s: float | None
    whole_flops_per_s: float | None
    saves: int
    stall_s: float
    restores: int
    restore_s: float
    failures: int
    device_hours: float
    foretold: Forecast | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the forecast, or None if there was no forecast or there are too few steps."""
        return None if self.foretold is None or self.step_s is None else self.foretold.error(self.step_s)


class Pauses(NamedTuple):
    """Inputs for the choice of the save interval, each with its source."""

    stall_s: float
    restore_s: float
    failures_per_device_hour: float
    sources: tuple[str, str, str]


def known(workspace: Workspace) -> tuple[list[RecordedRun], list[str]]:
    """Return the runs of a workspace, oldest first, and the reason for each run that cannot be read."""
    found, broken = list[tuple[float, RecordedRun]](), list[str]()
    for path in sorted(workspace.runs.glob("*/config.json")):
        try:
            config = configuration.load(path)
            if config.directory.events.exists():
                found.append((config.directory.events.stat().st_mtime, _of_run(config)))
        except (PlinthError, OSError) as error:
            broken.append(f"{path.parent.name}: {error}")
    return [run for _, run in sorted(found, key=lambda one: one[0])], broken


def _of_run(config: RunConfig) -> RecordedRun:
    """Return a run's cached measurements, or else measure its timeline."""
    path, length = config.directory.measured, config.directory.events.stat().st_size
    with suppress(FileNotFoundError, ValidationError):
        kept = RecordedRun.model_validate_json(path.read_bytes())
        if kept.events_bytes == length:
            return kept
    made = measured(config)
    if config.directory.result.exists():
        with suppress(OSError):  # another user's workspace
            write_bytes(path, made.model_dump_json(indent=1).encode() + b"\n")
    return made


def measured(config: RunConfig) -> RecordedRun:
    """Measure a run by its timeline.

    Raises:
        IntegrityError, LineageError: timeline, statements or forecast are broken.
    """
    length = config.directory.events.stat().st_size
    events = list(read_events(config.directory.events))
    machine, device = _device(config, events)
    steps = list(following_steps(events))
    enough = len(steps) >= LEAST_STEPS
    done = _done(config, steps, config.launch.ranks_per_node if device == CPU else 1) if enough else []
    busy = sum(step.seconds.total() - step.seconds["checkpoint"] for step in steps)
    paused = [step.seconds["checkpoint"] for step in steps if step.seconds["checkpoint"] > 0]
    ledger = account(events, config.ranks)
    restores = [one.rank_us["restore"] / one.ranks / 1e6 for one in ledger.attempts if one.rank_us.get("restore")]
    return RecordedRun(
        run=config.run_id,
        events_bytes=length,
        machine=machine,
        device=device,
        model=_model(config.model, config.vocab_size),
        parameters=architectures.parameters(config.model, config.vocab_size).total,
        flops_per_s=_rates(steps, done),
        step_s=busy / len(steps) if enough else None,
        whole_flops_per_s=sum(done) / busy if enough and busy > 0 else None,
        saves=len(paused),
        stall_s=sum(paused),
        restores=len(restores),
        restore_s=sum(restores),
        failures=sum(one["event"] in ("restart", "vanished", "lost") and one.get("phase") != "audit" for one in events),
        device_hours=ledger.held_rank_s / 3600,
        foretold=read(config),
    )


def _done(config: RunConfig, steps: Sequence[StepSeconds], together: int) -> list[float]:
    """Return the FLOPs of a rank in each step, multiplied by the number of ranks whose speed is measured together."""
    per_step, done = dict[tuple[int, int], float](), list[float]()
    for step in steps:
        key = config.steps.batch(step.number - 1), config.steps.length(step.number - 1)
        if key not in per_step:
            work = work_of(config, *key)
            per_step[key] = ranking.rank_flops(work, config.parallel, config.micro_batch_sequences, config.ranks)
        done.append(per_step[key] * together)
    return done


def _rates(steps: Sequence[StepSeconds], done: Sequence[float]) -> tuple[float, float] | None:
    """Return the FLOP/s of the slower and of the faster steps. Steps without computation time are left out."""
    timed = zip(done, (step.seconds["compute"] for step in steps), strict=False)
    rates = sorted(flops / seconds for flops, seconds in timed if seconds > 0)
    cut = int(len(rates) * TAIL)
    return (rates[cut], rates[-1 - cut]) if rates else None


def _model(model: Model, vocab_size: int) -> str:
    return fingerprint.digest({"model": model.model_dump(mode="json"), "vocab_size": vocab_size})[:16]


def _device(config: RunConfig, events: Iterable[Event]) -> tuple[str, str]:
    """Return fingerprint and device of the leading rank's machine."""
    kind = next((str(one.get("device", "")) for one in events if one["event"] == "run_started"), "")
    stated = attempts.known(config.directory)
    if not stated:
        return "", CPU if kind == "cpu" else ""
    host = attempts.stated(stated[-1], config.run_id).hosts[0]
    named = devices.called(host.gpus[0]) if kind == "cuda" and host.gpus else None
    return machine_speed.machine_of(host), CPU if kind == "cpu" else named or ""


def like(
    runs: Iterable[RecordedRun], device: str, work: ranking.TrainingWork
) -> tuple[list[RecordedRun], str]:
    """Return runs of the same model on a device, or if there are none, of models of similar size. The second value
    describes the selection."""
    digest = _model(work.model, work.vocab_size)
    parameters = architectures.parameters(work.model, work.vocab_size).total
    there = [run for run in runs if run.device == device]
    same = [run for run in there if run.model == digest]
    if same:
        return same, "of this model"
    near = [run for run in there if parameters / ALIKE <= run.parameters <= parameters * ALIKE]
    return near, "of models of this size"


def chosen(
    runs: Iterable[RecordedRun], device: str, machine: str, work: ranking.TrainingWork
) -> tuple[list[RecordedRun], str]:
    """Return similar runs on a device, with a description of the selection. If there are runs on this machine, only
    these are returned."""
    found, which = like(runs, device, work)
    here = [run for run in found if machine and run.machine == machine]
    found = here or found
    where = " on this machine" if here else ""
    return found, f"{counted(len(found), 'run')} {which} on {device}{where}, recorded"


def efficiency(runs: Iterable[RecordedRun], on: PlannedDevice, work: ranking.TrainingWork) -> Efficiency:
    """Return the range of efficiencies of similar runs, from the slowest to the fastest. If there are none, return the
    assumed range.

    If there are runs on this machine, only these runs are used.
    """
    found, words = chosen([run for run in runs if run.flops_per_s is not None], on.name, on.machine, work)
    ranges = [run.flops_per_s for run in found if run.flops_per_s is not None]
    if not ranges:
        return STATED
    low, high = min(one[0] for one in ranges) / on.peak, max(one[1] for one in ranges) / on.peak
    return Efficiency(low=low, high=high, source=words)


def pauses(
    runs: Sequence[RecordedRun], name: str, work: ranking.TrainingWork, stall_s: float | None = None
) -> Pauses:
    """Return stall and restore time of similar runs, and the failure rate of all runs on the device.

    If a value was never recorded, an assumed value is returned.

    Args:
        stall_s: stall to use instead of the recorded one.
    """
    found, which = like(runs, name, work)
    saves, restores = sum(run.saves for run in found), sum(run.restores for run in found)
    stall, of_stall = STALL_S, "assumed"
    if stall_s is not None:
        stall, of_stall = stall_s, "stated"
    elif saves:
        stall, of_stall = sum(run.stall_s for run in found) / saves, f"{saves:,} saves of runs {which}"
    restore, of_restore = RESTORE_S, "assumed"
    if restores:
        restore = sum(run.restore_s for run in found) / restores
        of_restore = f"{restores:,} restores of runs {which}"
    rate, of_rate = _failures([run for run in runs if run.device == name], name)
    return Pauses(stall, restore, rate, (of_stall, of_restore, of_rate))


def _failures(runs: Sequence[RecordedRun], name: str) -> tuple[float, str]:
    failed, hours = sum(run.failures for run in runs), sum(run.device_hours for run in runs)
    published = FAILURES_PER_DEVICE_HOUR
    if max(failed, published * hours) < FAILURES:
        few = f"; too few recorded failures: {failed:,} in {hours:,.3g} hours of {name}" if hours else ""
        return published, f"published failure rate of Llama 3 on H100{few}"
    return max(1, failed) / hours, f"recorded failures: {failed:,} in {hours:,.3g} hours of {name}"


def errors(runs: Iterable[RecordedRun]) -> list[str]:
    """Return sentences on the errors of forecasts, over all runs and for the last run."""
    compared = [run for run in runs if run.error is not None]
    if not compared:
        return []
    sizes = sorted(abs(run.error or 0.0) for run in compared)
    last = compared[-1]
    assert last.foretold is not None
    step, before = last.step_s or 0.0, last.foretold
    inside = sum(one.foretold is not None and one.foretold.low_s <= (one.step_s or 0.0) <= one.foretold.high_s
                 for one in compared)  # fmt: skip
    return [
        f"predictions and measurements of {counted(len(compared), 'run')}: the median error of the step time is "
        f"{sizes[len(sizes) // 2]:.0%}; {inside} within the predicted range",
        f"last run, {last.run}: predicted {before.step_s:.4g} s per step ({before.low_s:.4g} to {before.high_s:.4g}), "
        f"measured {step:.4g} s, error {last.error:+.0%}",
    ]


def work_of(config: RunConfig, batch: int | None = None, length: int | None = None) -> ranking.TrainingWork:
    """Return a run's training work in the form that the planner uses.

    Args:
        batch: sequences per step, if schedules change it. If None, the largest batch of the run is used.
        length: tokens per sequence.
    """
    precision: Literal["fp32", "bf16"] = "fp32" if config.precision == "fp32" else "bf16"
    return ranking.TrainingWork(
        config.model, config.vocab_size, length or config.sequence_tokens, batch or max(config.steps.batches),
        precision, config.parallel, config.optimizer, private=hooks.one_by_one(config),
    )  # fmt: skip


def predict(config: RunConfig, on: PlannedDevice, efficiency: Efficiency = STATED) -> Forecast:
    """Return the planner's forecast for a run with its parallel layout."""
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
    """Write a run's forecast unless it has one, because only the forecast before the first job is valid."""
    path = config.directory.forecast
    if not path.exists():
        write_bytes(path, made.model_dump_json(indent=1).encode() + b"\n")


def read(config: RunConfig) -> Forecast | None:
    """Return a run's forecast, or None if it has none.

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
