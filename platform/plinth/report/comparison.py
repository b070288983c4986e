"""The page of a comparison: two models side by side, self-contained."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from plinth.evaluation.comparison.differences import NONE, WHOLE, Difference, said
from plinth.evaluation.statistics import Estimate
from plinth.records import Manifest
from plinth.report import comparison_figure
from plinth.report.render import svg

if TYPE_CHECKING:
    from jinja2 import Template

KINDS = {
    "slices": "Held-out text",
    "protected": "Items of protected sets",
    "probes": "Probes",
    "tasks": "Tasks",
}


def page(made: Manifest, a: str, b: str) -> str:
    """The page as HTML. The same manifest and names give the same bytes.

    Args:
        made: of `evaluation.comparison.job`.
        a, b: names of the models, for people.
    """
    lines = [Difference.model_validate(line) for line in made.stats["lines"]]
    kinds: dict[str, list[Difference]] = {}
    for line in lines:
        kinds.setdefault(line.kind, []).append(line)
    return _template().render(
        made=made,
        stats=made.stats,
        models=[("A", a, made.stats["models"]["a"]), ("B", b, made.stats["models"]["b"])],
        headline=[line for line in lines if line.slice == WHOLE],
        kinds=[(KINDS.get(kind, kind), own) for kind, own in kinds.items()],
        plot=svg(comparison_figure.figure, lines, title="Differences between the two models, with intervals"),
        methods=sorted({line.difference.method for line in lines}),
        said=said,
        number=number,
        interval=interval,
        tone=lambda line: "" if line.better == NONE else "a" if line.better == "a" else "b",
    )


def number(value: Any) -> str:
    """Four significant digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def interval(found: Estimate | None, sign: bool = False) -> str:
    """A value with its ends: `1.932 (1.901 to 1.964)`."""
    if found is None:
        return "–"
    value, low, high = (f"{one:+.4g}" if sign else f"{one:.4g}" for one in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})" if found.low < found.high else f"{value} (no interval)"


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plinth.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("comparison_page.html.j2")
