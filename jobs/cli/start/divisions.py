"""`plinth plan --devices 512xH100`: the divisions of a recipe's run over a fleet, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plinth.launch.devices import Device
    from plinth.operation.planning.plan import TrainingPlan
    from plinth.operation.planning.ranking import RankedDivision, TrainingWork


def workload(recipe: Any, made: TrainingPlan) -> TrainingWork:
    """What the ranking is of: the recipe's training, in the plan's vocabulary and precision."""
    from plinth.operation.planning.ranking import TrainingWork

    training = recipe.training
    return TrainingWork(
        training.model,
        made.vocab_size,
        made.sequence_tokens,
        training.global_batch_sequences,
        made.precision,
        training.parallel,
        training.optimizer,
        private=training.privacy is not None,
        float8=training.float8 != "none",
        distilled=training.distillation is not None,
    )


def fewest(work: TrainingWork, device: Device) -> tuple[int | None, int | None]:
    """The fewest devices on which the run fits: with all on them, and with states in the host's memory."""
    from plinth.operation.planning.ranking import minimum_devices

    return minimum_devices(work, device), minimum_devices(work, device, offloaded=True)


def as_record(ranked: list[RankedDivision], least: tuple[int | None, int | None], steps: int) -> dict[str, Any]:
    """For JSON: every division."""
    rows = [
        {**one._asdict(), **{name: getattr(one, name) for name in ("division", "reason", "step_s")}}
        | {"run_s": span(one, steps)}
        for one in ranked
    ]
    return {"minimum_devices": least[0], "minimum_devices_offloaded": least[1], "divisions": rows}


def span(one: RankedDivision, steps: int) -> tuple[float, float]:
    """Seconds of a run at the best and the worst efficiency."""
    from plinth.operation.planning.ranking import EFFICIENCY

    middle, exposed = sum(EFFICIENCY) / 2, sum(one.exposed_s.values())
    least, most = ((one.compute_s + one.bubble_s) * middle / share + exposed for share in reversed(EFFICIENCY))
    return steps * least, steps * most


def show(
    ranked: list[RankedDivision],
    least: tuple[int | None, int | None],
    steps: int,
    fleet: tuple[int, str, Device],
    spot: bool,
    fp32: bool,
    stall_s: float,
    shown: int,
) -> None:
    """A table of the quickest, what the quickest costs, and how often to save."""
    from jobs.cli import output
    from plinth.launch.devices import PRICES
    from plinth.operation.planning import interval
    from plinth.operation.planning.ranking import EFFICIENCY

    count, name, device = fleet
    fitting = [one for one in ranked if not one.over_bytes]
    output.heading(f"{count:,} {name}: {len(ranked):,} divisions can run, {len(fitting):,} fit")
    rows = [
        (one.division, output.size(one.memory_bytes), f"{one.step_s:.3g} s" if not one.over_bytes else "-", one.reason)
        for one in ranked[:shown]
    ]
    output.table(["division", "memory", "step", "held back by"], rows, right=["memory", "step"])
    alone, helped = (f"{fewest:,}" if fewest else "more than 1,024" for fewest in least)
    less = "" if helped == alone else f"; {helped} with states in the host's memory"
    lines = {"minimum": f"{alone} {name}{less}, of powers of two, whatever the time"}
    if fitting:
        low, high = span(fitting[0], steps)
        price = (device.spot_hour if spot else device.on_demand_hour) * count / 3600
        watts = count * device.watts
        failure = interval.between_failures_s(count)
        lines |= {
            "wall clock": f"{output.duration(low)} to {output.duration(high)}, {steps:,} steps of the first",
            "money": f"{low * price:,.0f} to {high * price:,.0f} dollars, {'spot' if spot else 'on demand'}",
            "energy": f"{low * watts / 3.6e6:,.3g} to {high * watts / 3.6e6:,.3g} kWh at the devices' rated power",
            "save every": f"{output.duration(interval.daly(stall_s, failure))}: a failure each "
            f"{output.duration(failure)}, {stall_s:g} s of stall a save",
        }
    output.facts(lines)
    if fp32:
        output.say("  - FP32 is counted at the peak of BF16, which it does not reach (--precision bf16)")
    output.say(f"  - matrix products reach {EFFICIENCY[0]:.0%} to {EFFICIENCY[1]:.0%} of the peak; steps at the middle")
    output.say("  - no latency, start-up, restarts, update but an offloaded one's; documents as long as rows")
    output.say("  - failures as often as Llama 3's on H100; save intervals by Daly (2006)")
    output.say(f"  - {PRICES}")
