"""Ranking of all parallel layouts of a recipe's run on a fleet (`plinth run plan --devices 512xH100`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plinth.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from plinth.errors import RequestError
    from plinth.launch.devices import Device
    from plinth.operation.forecast import Pauses, RecordedRun
    from plinth.operation.ranking import RankedDivision, TrainingWork
    from plinth.operation.spending import Efficiency, PlannedDevice
    from plinth.recipe.recipe import Recipe
    from plinth_lab.planning.plan import TrainingPlan


class Fleet(NamedTuple):
    """Number of devices of one kind, on which a run is planned."""

    size: int
    device: PlannedDevice


class RecordedPlan(NamedTuple):
    """Efficiency and save pauses estimated from recorded runs, as evidence for a plan."""

    efficiency: Efficiency
    pauses: Pauses
    runs: list[RecordedRun]
    broken: list[str]


class FleetPlan(NamedTuple):
    """Parallel layouts of a planned run on a fleet, fastest first, with evidence from recorded runs."""

    plan: TrainingPlan
    fleet: Fleet
    divisions: list[RankedDivision]
    fewest: tuple[int | None, int | None]  # devices: with all on them, and with states in the host's memory
    said: RecordedPlan


def ranked(made: TrainingPlan, recipe: Recipe, fleet: Fleet, workspace: Path, stall_s: float | None) -> FleetPlan:
    """Rank all parallel layouts of a recipe's run on a fleet, with the workspace's runs as evidence.

    The workspace need not exist.

    Raises:
        RequestError: no layout divides the run among the devices.
    """
    from plinth.operation.ranking import minimum_devices, rank

    work, device = workload(recipe, made), fleet.device.device
    said = _measured(workspace, fleet.device, work, stall_s)
    divisions = rank(work, fleet.size, device, said.efficiency)
    if not divisions:
        raise _indivisible(work, fleet.size)
    fewest = minimum_devices(work, device), minimum_devices(work, device, offloaded=True)
    return FleetPlan(made, fleet, divisions, fewest, said)


def _indivisible(work: TrainingWork, devices: int) -> RequestError:
    from plinth.errors import RequestError
    from plinth.operation.ranking import legal

    halves = (devices >> times for times in range(1, devices.bit_length()))
    some = next((count for count in halves if any(True for _ in legal(work, count))), 0)
    batch = counted(work.global_batch_sequences, "sequence")
    return RequestError(
        f"no parallel layout divides this run among {devices:,} devices",
        found=f"batches of {batch} of {work.sequence_tokens:,} tokens, {work.model.layers} layers, "
        f"{work.model.heads} heads",
        expected="a product of data, tensor, pipeline and sequence degrees in which each rank has work",
        remedy=f"use {counted(some, 'device')}, or use larger batches (training.global_batch_sequences)",
    )


def workload(recipe: Recipe, made: TrainingPlan) -> TrainingWork:
    """Return the training workload to rank: the recipe's training with the plan's vocabulary size and precision."""
    from plinth.operation.ranking import TrainingWork
    from plinth.training import hooks

    training = recipe.training
    return TrainingWork(
        training.model,
        made.vocab_size,
        made.sequence_tokens,
        training.global_batch_sequences,
        made.precision,
        training.parallel,
        training.optimizer,
        private=hooks.one_by_one(training),
        float8=training.float8 != "none",
        undivided=frozenset(hooks.undivided(training)),
    )


def fleet_of(
    text: str, table: Mapping[str, Device], workspace: Path, precision: Literal["fp32", "bf16"] | None
) -> Fleet:
    """Parse a fleet such as `512xH100`. `2xcpu` means the measured processors of this machine, divided among two ranks.

    Raises:
        RequestError: the text does not have this form, or the device is not known.
    """
    from plinth.launch import devices
    from plinth.operation.spending import CPU, of_table, processors
    from plinth.storage.workspace import Workspace

    count, name = devices.counted(text)
    if name.lower() == CPU and CPU not in table:
        return Fleet(count, processors(Workspace(workspace), precision or "fp32", count))
    return Fleet(count, of_table(name, table))


def recorded_runs(workspace: Path) -> tuple[list[RecordedRun], list[str]]:
    """Return the runs of a workspace, and the names of runs that cannot be read. The workspace need not exist."""
    from plinth.operation.forecast import known
    from plinth.storage.workspace import Workspace

    return known(Workspace(workspace)) if workspace.is_dir() else ([], [])


def at_recorded_speed(made: TrainingPlan, recipe: Recipe, device: str | None, runs: list[RecordedRun]) -> TrainingPlan:
    """Return a training plan with a wall-clock time from similar runs of the workspace.

    If no similar run is recorded, the plan is unchanged.
    """
    from plinth_lab.planning.plan import speed

    training, work = recipe.training, workload(recipe, made)
    found = speed(runs, work, training.parallel, training.micro_batch_sequences, training.launch, device)
    return made if found is None else made.at(found)


def _measured(workspace: Path, on: PlannedDevice, work: TrainingWork, stall_s: float | None) -> RecordedPlan:
    """Estimate efficiency and save pauses from the runs of a workspace. The workspace need not exist."""
    from plinth.operation import forecast

    runs, broken = recorded_runs(workspace)
    return RecordedPlan(
        forecast.efficiency(runs, on, work), forecast.pauses(runs, on.name, work, stall_s), runs, broken
    )


def as_record(found: FleetPlan) -> dict[str, Any]:
    """Return the layouts and the evidence from recorded runs, for JSON."""
    from plinth.operation.ranking import span

    said = found.said
    rows = [
        {**one._asdict(), **{name: getattr(one, name) for name in ("division", "reason", "step_s")}}
        | {"run_s": tuple(found.plan.steps * seconds for seconds in span(one, said.efficiency))}
        for one in found.divisions
    ]
    compared = [
        {"run": run.run, "foretold_s": run.foretold.step_s, "measured_s": run.step_s, "error": run.error}
        for run in said.runs
        if run.foretold is not None and run.error is not None
    ]
    return {
        "plan": found.plan,
        "minimum_devices": found.fewest[0],
        "minimum_devices_offloaded": found.fewest[1],
        "efficiency": said.efficiency.model_dump(),
        "pauses": said.pauses._asdict(),
        "foretold": compared,
        "divisions": rows,
    }


def show(found: FleetPlan, spot: bool, shown: int) -> None:
    """Print a table of the fastest layouts, then cost, time and checkpoint interval for the fastest layout."""
    from plinth.launch.devices import PRICES
    from plinth.operation.ranking import span
    from plinth_jobs.cli import output

    (count, planned), said, steps = found.fleet, found.said, found.plan.steps
    name, device = planned.name, planned.device
    fitting = [one for one in found.divisions if not one.over_bytes]
    divisions = counted(len(found.divisions), "division")
    output.heading(f"{count:,} {name}: {divisions} can run, {len(fitting):,} fit")
    rows = [
        (one.division, output.size(one.memory_bytes), f"{one.step_s:.3g} s" if not one.over_bytes else "-", one.reason)
        for one in found.divisions[:shown]
    ]
    output.table(["division", "memory", "step", "held back by"], rows, right=["memory", "step"])
    alone, helped = (f"{fewest:,}" if fewest else "more than 1,024" for fewest in found.fewest)
    less = "" if helped == alone else f", or {helped} with optimizer states in host memory"
    lines = {"minimum": f"{alone} {name}{less} (only powers of two are tried; run time is ignored)"}
    if fitting:
        low, high = (steps * seconds for seconds in span(fitting[0], said.efficiency))
        price = (device.spot_hour if spot else device.on_demand_hour) * count / 3600
        watts = count * device.watts
        clock = f"{output.duration(low)} to {output.duration(high)}"
        lines |= {"wall clock": f"{clock} for {counted(steps, 'step')} in the first layout that fits"}
        if price:
            kind = "spot" if spot else "on demand"
            lines |= {"money": f"{low * price:,.0f} to {high * price:,.0f} dollars, {kind}"}
        if watts:
            power = f"{low * watts / 3.6e6:,.3g} to {high * watts / 3.6e6:,.3g} kWh"
            lines |= {"energy": f"{power} at the devices' rated power"}
        lines |= {"save every": _save_every(count, said.pauses)}
    output.facts(lines)
    if found.plan.precision == "fp32" and not planned.machine:
        output.say("  - FP32 is estimated with the peak of BF16, so a real run is slower (--precision bf16)")
    output.say(f"  - {said.efficiency.words()}; step times use the middle of the range")
    output.say("  - not included: latency, start-up, restarts, optimizer updates unless offloaded; documents fill rows")
    for name_, source in zip(("stall per save", "restore", "failures"), said.pauses.sources, strict=True):
        output.say(f"  - {name_}: {source}")
    output.say("  - save interval: formula of Daly (2006)")
    output.say(f"  - {PRICES}")
    show_errors(said.runs, said.broken)


def _save_every(count: int, pauses: Pauses) -> str:
    from plinth.operation import spending
    from plinth_jobs.cli import output

    failure = spending.between_failures_s(count, pauses.failures_per_device_hour)
    every = spending.daly(pauses.stall_s, failure)
    lost = spending.waste(every, pauses.stall_s, pauses.restore_s, failure)
    return (
        f"{output.duration(every)}, for one failure per {output.duration(failure)}, {pauses.stall_s:.3g} s of "
        f"stall per save and {pauses.restore_s:.3g} s to restore; the time lost is {lost:.2%} of the total"
    )


def show_errors(runs: list[RecordedRun], broken: list[str]) -> None:
    """Print the planner's prediction errors for the recorded runs, and the runs that cannot be read."""
    from plinth.operation.forecast import errors
    from plinth_jobs.cli import output

    for line in (*errors(runs), *(f"left out, {reason}" for reason in broken)):
        output.say(f"  - {line}")
