"""Roofline of a run: its mean step, its computation, the roof of its machine, and the rule for its bottleneck.

The part of the step with the most time comes first (ties: in the order of `STEP_PARTS`). Computation is bound by one of
two roofs (Williams, Waterman and Patterson 2009): by `memory` below the ridge point in FLOPs per byte, otherwise by
`compute`. The computed memory traffic is a lower bound (model.traffic), and kernel launches also take time. Therefore,
computation below `LOW` of the measured FLOP/s counts as `memory` at any intensity. Communication time spent waiting for
a slower rank is a separate cause, `slow rank`, because faster links would not shorten it.

Amdahl's bound for a part is the step time without that part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.model import architectures
from plinth.model.architectures import attention_bytes, product_bytes, update_bytes
from plinth.records import Frozen
from plinth.report import style
from plinth.report.page import template
from plinth.report.run_panels import UNITS_PER_INCH, WIDTH
from plinth.report.run_sections import AddedSection
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, svg
from plinth.text import counted
from plinth.training import attempts
from plinth.training.config import RunConfig
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import DeviceSpeed, MachineSpeed, Roof
from plinth.training.telemetry.step_clock import STEP_PARTS, MeanStep, StepPart, mean_step
from plinth.training.telemetry.timeline import read_events

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cause = Literal["compute", "memory", "communication", "slow rank", "input", "checkpoint", "host"]

#: Share of the FLOP/s of large products below which arithmetic is not the bottleneck. Published runs reach 0.3 to 0.6.
LOW = 0.2
#: Speedups below this round to 1.
NO_GAIN = 1.005

#: Bytes per element of activations and weights.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

#: Remedies by cause.
HELP: dict[Cause, str] = {
    "compute": "use more ranks, faster devices, a lower precision (training.precision, float8) or less recomputation",
    "memory": "the matrices are small or have few tokens: use larger training.micro_batch_sequences, a wider model, or "
    "training.parallel.compile",
    "communication": "use a larger global batch, fewer ranks that divide the model, another "
    "training.parallel.communication_dtype, a lower ZeRO stage, or faster links",
    "slow rank": "check the disk, processors and device of that rank (`plinth run timeline`), or replace its node",
    "input": "put the shards on a faster disk, or cache them on the node (training.reading)",
    "checkpoint": "set training.checkpoints to a larger every_steps or to mode async, or use a faster disk",
    "host": "larger steps, fewer other processes on the node",
}


class StepWork(Frozen):
    """Computation of one rank in one step: FLOPs, and device memory traffic in bytes."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte of device memory traffic."""
        return self.flops / self.bytes


class Bottleneck(Frozen):
    """Cause of a part of a step's time.

    Attributes:
        seconds: seconds of this cause per step.
        share: fraction of the step time.
        without_s: seconds per step without this cause.
        speedup: step time divided by `without_s`; infinite if `without_s` is 0.
    """

    cause: Cause
    seconds: float
    share: float
    without_s: float
    help: str

    @property
    def speedup(self) -> float:
        return (self.without_s + self.seconds) / self.without_s if self.without_s > 0 else math.inf

    @property
    def bound(self) -> str:
        """Maximum speedup of a step if this cause took no time, as text."""
        if not math.isfinite(self.speedup):
            return "no time remains"
        return f"at most {self.speedup:.3g} times as fast" if self.speedup >= NO_GAIN else "no gain"


def bottlenecks(
    seconds: Mapping[StepPart, float],
    work: StepWork | None = None,
    roof: Roof | None = None,
    *,
    waited_s: float = 0.0,
) -> tuple[Bottleneck, ...]:
    """Return the causes of a step's time, largest first. Causes that take no time are left out.

    Args:
        waited_s: seconds of the communication that are spent waiting for slower ranks.
        work, roof: None if the run's machine was never measured; computation then counts as `compute`.
    """
    total = sum(seconds.values())
    spent: dict[Cause, float] = {}
    for part in STEP_PARTS:
        own = seconds.get(part, 0.0)
        if part == "communication":
            spent |= {"communication": own - waited_s, "slow rank": waited_s}
        else:
            spent[_of_compute(own, work, roof) if part == "compute" and own > 0 else part] = own
    ordered = sorted((cause for cause in spent if spent[cause] > 0), key=lambda cause: -spent[cause])
    return tuple(
        Bottleneck(cause=cause, seconds=own, share=own / total, without_s=total - own, help=HELP[cause])
        for cause, own in ((cause, spent[cause]) for cause in ordered)
    )


def _of_compute(seconds: float, work: StepWork | None, roof: Roof | None) -> Cause:
    if work is None or roof is None:
        return "compute"
    fed = work.intensity >= roof.ridge and work.flops / seconds >= LOW * roof.flops_per_s
    return "compute" if fed else "memory"


class RunRoofline(Frozen):
    """Bottleneck of a run's steps. `roof` and `device` are None if the run's machine was not measured."""

    run: str
    step: MeanStep
    work: StepWork
    roof: Roof | None
    device: DeviceSpeed | None
    causes: tuple[Bottleneck, ...]

    @property
    def reached(self) -> float:
        """FLOP/s of a rank while it computes."""
        seconds = self.step.seconds["compute"]
        return self.work.flops / seconds if seconds > 0 else 0.0


def machine(config: RunConfig) -> str:
    """Return the fingerprint of the leading rank's machine, or of this machine if the run recorded no fingerprint."""
    known = attempts.known(config.directory)
    if not known:
        return machine_speed.this_machine()
    return machine_speed.machine_of(attempts.stated(known[-1], config.run_id).hosts[0])


def of_run(config: RunConfig, speed: MachineSpeed | None) -> RunRoofline:
    """Return the roofline of a run from its current timeline.

    Args:
        speed: measured speed of the run's machine. If None, compute-bound and memory-bound steps are not distinguished.

    Raises:
        MissingError: there are no two consecutive steps yet.
        IntegrityError: the timeline is broken.
    """
    step = mean_step(read_events(config.directory.events))
    work = step_work(config, step)
    found = speed.roof(step.device, precision(config, step), config.launch) if speed else None
    roof, device = found or (None, None)
    causes = bottlenecks(step.seconds, work, roof, waited_s=step.waited_s)
    return RunRoofline(run=config.run_id, step=step, work=work, roof=roof, device=device, causes=causes)


def precision(config: RunConfig, step: MeanStep) -> str:
    """Return the precision of a run's matrix products, as named in `DeviceSpeed`.

    FP8 speed is not measured; the speed of BF16 is used.
    """
    return "tf32" if step.precision == "fp32" and config.fp32_matmul == "tf32" else step.precision


def step_work(config: RunConfig, step: MeanStep) -> StepWork:
    """Return the FLOPs and the device memory traffic of one rank in the mean step."""
    model, parallel = config.model, config.parallel
    every, fused = parallel.activation_checkpointing, step.device == "cuda"
    recomputed = model.layers // every if every else 0
    element = ELEMENT_BYTES.get(step.precision, 4)
    lengths = {stretch.length for stretch in config.steps.stretches}
    per_token = {}
    for length in lengths:
        # FlexAttention skips blocks outside of a window; a dense mask does not
        keys = architectures.square_keys(model, length) if fused else [length] * model.layers
        per_token[length] = architectures.flops_hardware(model, config.vocab_size, keys, every=every, fused=fused)
    done = moved = 0.0
    for number in step.steps:
        length = config.steps.length(number - 1)
        tokens = config.micro_batch_sequences * config.sequence_tokens // parallel.sequence
        done += config.step_tokens(number) * per_token[length] / config.ranks
        once = product_bytes(model, config.vocab_size, tokens, element, tensor=parallel.tensor)
        once += attention_bytes(model, tokens, element, tensor=parallel.tensor)
        again = 1 + recomputed / model.layers / 3  # a third of the bytes are the forward pass's
        moved += config.accumulation(number) * once * again / parallel.pipeline
    shared = parallel.tensor * parallel.pipeline * (config.data_ranks if parallel.zero_stage else 1)
    update = update_bytes(model, config.vocab_size, shared)
    return StepWork(flops=done / len(step.steps), bytes=moved / len(step.steps) + update)


#: Margin of the plot beyond the ridge and the run, as a factor.
MARGIN = 8.0

#: Size of the plot, in page units.
HEIGHT = 230


def html(ctx: Context, config: RunConfig) -> str:
    """Return the page section on the run's bottleneck, or an empty string if there are too few steps.

    The section includes the roofline if the run's machine was measured.
    """
    try:
        found = of_run(config, machine_speed.known(ctx.workspace, machine(config)))
    except MissingError:
        return ""
    return rendered(found)


def rendered(found: RunRoofline) -> str:
    """Render the page section on the run's bottleneck as HTML."""
    return template("section.html.j2", "plinth_extras.roofline").render(roofline=section(found))


def section(found: RunRoofline) -> dict[str, Any]:
    """Return the text, rows and plot of the page section on the run's bottleneck."""
    tones = style.colours(HELP)
    rows = [
        {
            "cause": one.cause,
            "colour": tones[one.cause],
            "width": round(100 * one.share, 3),
            "seconds": style.seconds(one.seconds),
            "share": style.percent(one.share),
            "bound": one.bound,
            "help": one.help,
        }
        for one in found.causes
    ]
    drawn = "" if found.roof is None else svg(figure, found, found.roof, title="roofline", key="roofline")
    command = f"plinth run roofline {found.run}" if found.roof is None or found.device is None else ""
    return {"first": found.causes[0].cause, "words": _words(found), "command": command, "rows": rows, "svg": drawn}


def _words(found: RunRoofline) -> str:
    step = found.step
    words = f"Mean time of each part of a step, over {counted(len(step.steps), 'step')} of the leading rank: "
    words += (
        f"the parts and the time between steps take {step.seconds_together:.4g} s; the wall-clock time is "
        f"{step.wall_s:.4g} s."
    )
    words += "".join(f" Found: {slow.words()}." for slow in step.slow_ranks)
    if found.roof is None or found.device is None:
        return f"{words} The speed of the run's machine was not measured."
    attainable = found.roof.attainable(found.work.intensity)
    return (
        f"{words} {found.device.name}: the measured ridge point is at {found.roof.ridge:.3g} FLOPs per byte. A "
        f"step has {found.work.intensity:.3g} FLOPs per byte and reaches "
        f"{style.percent(found.reached / attainable)} of the attainable rate."
    )


def figure(found: RunRoofline, roof: Roof) -> Figure:
    """Plot FLOP/s over FLOPs per byte on logarithmic axes: the measured roof with its ridge, and the run's point."""
    from matplotlib.figure import Figure

    intensity = found.work.intensity
    low, high = min(intensity, roof.ridge) / MARGIN, max(intensity, roof.ridge) * MARGIN
    fig = Figure(figsize=(WIDTH / UNITS_PER_INCH, HEIGHT / UNITS_PER_INCH), layout="constrained")
    ax = fig.subplots()
    ax.loglog([low, roof.ridge, high], [roof.attainable(x) for x in (low, roof.ridge, high)], color=MUTED)
    ax.axvline(roof.ridge, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    ax.text(roof.ridge, roof.flops_per_s, " ridge", color=SOFT_INK, fontsize=8, va="bottom")
    if found.reached > 0:
        ax.plot([intensity] * 2, [found.reached, roof.attainable(intensity)], color=WARNING, alpha=0.5, linewidth=1.2)
        ax.plot([intensity], [found.reached], "o", color=ACCENT, markersize=6)
        ax.text(intensity, found.reached, "  while it computes", color=ACCENT, fontsize=8, va="center")
    ax.set_xlabel("FLOPs per byte")
    ax.set_ylabel("FLOP/s per rank")
    ax.grid(axis="both")
    return fig


SECTION = AddedSection(
    name="roofline",
    title="Bottleneck",
    html=html,
    question="what limits the speed of the run's steps",
    command="plinth run roofline RUN",
)
