"""Bottleneck of a run: the time of each part of a step, compared with the measured speed of the machine.

    bottleneck   roofline of a run and the rule for its bottleneck; section of a run's page

The mean time of each part of a step is in `plinth.training.telemetry.step_clock`, and the speed of a machine is in
`machine_speed`. The goodput ledger (telemetry) has the rest of a run's time: queue, start, restore, lost work.

Also here: the command `plinth run roofline`, which loads the other modules when it runs.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth_extras.roofline.bottleneck import RunRoofline

#: Share of the wall-clock time that may be missing from the parts without a message.
CLOSE = 0.01


@click.command(epilog=examples("plinth run roofline latest", "plinth run roofline latest --json | jq .causes[0].cause"))
@click.argument("run")
@click.option("--measure", is_flag=True, help="Measure the speed of this machine again.")
@shared
@json_option
def roofline(settings: Settings, run: str, measure: bool, as_json: bool) -> None:
    """Show the bottleneck of the steps of RUN (`latest`, a run ID or its prefix): computation, memory, communication,
    input, checkpoints or the host. The speedup without the bottleneck is printed as well.

    The FLOP/s and bandwidth of this machine are measured once after the run has ended, which takes a few seconds, and
    are stored in the workspace. If the run was on another machine, run this command there first.
    """
    from plinth.training.telemetry import machine_speed
    from plinth_extras.roofline import bottleneck
    from plinth_jobs.cli import output
    from plinth_jobs.targets import find_run

    ctx = settings.context()
    config = find_run(ctx, run)
    machine = bottleneck.machine(config)
    speed = None if measure else machine_speed.known(ctx.workspace, machine)
    idle = config.directory.result.exists()  # a measurement during the run would disturb it, and be too low
    if speed is None and (idle or measure) and machine == machine_speed.this_machine():
        speed = machine_speed.measure(ctx.workspace)
    found = bottleneck.of_run(config, speed)
    if as_json:
        output.emit_json(
            {
                **found.model_dump(mode="json", exclude={"step": {"steps"}}),
                "wall_s": found.step.wall_s,
                "step_s": found.step.seconds_together,
                "unaccounted": found.step.unaccounted,
                "intensity": found.work.intensity,
                "ridge": found.roof.ridge if found.roof else None,
                "reached_flops_per_s": found.reached,
                "attainable_flops_per_s": found.roof.attainable(found.work.intensity) if found.roof else None,
                "speedups": {one.cause: one.speedup if isfinite(one.speedup) else None for one in found.causes},
            }
        )
        return
    for line in described(found):
        output.line(line)


def described(found: RunRoofline) -> list[str]:
    """Return the bottleneck as lines of text: largest cause, parts of a step, roof."""
    from plinth.report import style

    step, first = found.step, found.causes[0]
    lines = [
        f"{found.run}: {first.cause}-bound; mean of {counted(len(step.steps), 'step')} {step.seconds_together:.4g} s",
        f"  {'':<15}{'s/step':>9}{'share':>8}  without it",
    ]
    for one in found.causes:
        lines.append(f"  {one.cause:<15}{one.seconds:>9.4g}{one.share:>8.1%}  {one.bound}")
    if abs(step.unaccounted) > CLOSE:
        lines.append(f"  wall-clock time {step.wall_s:.4g} s, of which {step.unaccounted:+.1%} is not in any part")
    if found.roof is None or found.device is None:
        lines.append(
            "  no roofline: the speed of the run's machine was not measured; run this command on that machine with "
            "--measure while it is idle"
        )
    else:
        roof, intensity = found.roof, found.work.intensity
        lines.append(
            f"  ridge point {roof.ridge:.3g} FLOPs per byte ({style.count(roof.flops_per_s)}FLOP/s, "
            f"{style.size(roof.bytes_per_s)}/s of a rank, measured: {found.device.name}); a step of the model has "
            f"{intensity:.3g} FLOPs per byte"
        )
        lines.append(
            f"  reached {style.count(found.reached)}FLOP/s while computing, "
            f"{found.reached / roof.attainable(intensity):.0%} of the attainable rate"
        )
    lines += [f"  {slow.words()}" for slow in step.slow_ranks]
    lines.append(f"  helps: {first.help}")
    return lines
