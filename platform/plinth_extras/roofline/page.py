"""The section of a run's page about what bounds its steps: parts with their bounds, and the run below its roof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.report import style
from plinth.report.page import template
from plinth.report.run.panels import UNITS_PER_INCH, WIDTH
from plinth.report.run.sections import AddedSection
from plinth.report.style import ACCENT, FAINT, MUTED, SOFT_INK, WARNING, svg
from plinth.text import counted
from plinth.training.config import RunConfig
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import Roof
from plinth_extras.roofline.bottleneck import HELP, RunRoofline, machine, of_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How far the drawing reaches beyond the ridge and the run, to each side.
MARGIN = 8.0

#: Of the drawing, in units of the page.
HEIGHT = 230


def html(ctx: Context, config: RunConfig) -> str:
    """The section, with the roof of the run's machine where that was measured; empty where too few steps are known."""
    try:
        found = of_run(config, machine_speed.known(ctx.workspace, machine(config)))
    except MissingError:
        return ""
    return rendered(found)


def rendered(found: RunRoofline) -> str:
    """The section as HTML."""
    return template("section.html.j2", "plinth_extras.roofline").render(roofline=section(found))


def section(found: RunRoofline) -> dict[str, Any]:
    """Words, rows and drawing."""
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
    words = f"Mean step by part, {counted(len(step.steps), 'step')} of the leading rank with the time between them: "
    words += f"{step.seconds_together:.4g} s; {step.wall_s:.4g} s of wall-clock time."
    words += "".join(f" Found: {slow.words()}." for slow in step.slow_ranks)
    if found.roof is None or found.device is None:
        return f"{words} The run's machine was not measured."
    attainable = found.roof.attainable(found.work.intensity)
    return (
        f"{words} {found.device.name}: ridge at {found.roof.ridge:.3g} FLOPs a byte, measured; a step has "
        f"{found.work.intensity:.3g}, and reaches {style.percent(found.reached / attainable)} of what the roof permits."
    )


def figure(found: RunRoofline, roof: Roof) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: the measured roof with its ridge, and the run's computation."""
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
    ax.set_xlabel("FLOPs for a byte moved")
    ax.set_ylabel("FLOP/s of a rank")
    ax.grid(axis="both")
    return fig


SECTION = AddedSection(
    name="roofline",
    title="Bottleneck",
    html=html,
    question="what bounds its steps",
    command="plinth run roofline RUN",
)
