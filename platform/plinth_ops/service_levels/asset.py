"""Dagster asset `service_levels`: indicators of all runs and assets of the workspace, and their error budgets.

The asset depends on the current time. Therefore, it is not a stage of the recipe, publishes no manifest and has no
consumers.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from plinth.recipe.recipe import Recipe
from plinth.report.style import ACCENT, FAINT, SOFT_INK, WARNING, WIDTH_INCHES
from plinth_assets.framework import shared_owner
from plinth_assets.framework.build import needed, opened
from plinth_assets.framework.placement import ALONE, DagsterPlacement
from plinth_assets.framework.present import page_link, picture, table
from plinth_jobs.definitions import AddedDefinitions, AssetJob, with_schedule
from plinth_ops.service_levels import objectives
from plinth_ops.service_levels.indicators import budgets
from plinth_ops.service_levels.tallies import ErrorBudget, Objectives, Tally, value

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ASSET, GROUP, JOB = "service_levels", "operation", "measure_service_levels"
BUDGETS, MEASURED = "error_budgets", "everything_measured"


def definitions(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.Definitions:
    """Return the asset `service_levels` and the job that materializes it every hour."""
    job = with_schedule(
        AssetJob(
            JOB, dg.AssetSelection.assets(place.key(ASSET)), "Measure service levels and error budgets.",
            "service_levels", "7 * * * *", "Measure service levels and error budgets every hour.",
        ),
        place,
    )  # fmt: skip
    return dg.Definitions.merge(dg.Definitions(assets=[asset(recipe, place)]), job)


def asset(recipe: Recipe, place: DagsterPlacement = ALONE) -> dg.AssetsDefinition:
    """Return the asset `service_levels` with two non-blocking checks: exhausted budgets, and indicators without
    data."""
    key = place.key(ASSET)
    checks = [
        dg.AssetCheckSpec(BUDGETS, asset=key, description="No error budget is exhausted."),
        dg.AssetCheckSpec(MEASURED, asset=key, description="Every indicator has data in its window."),
    ]

    @dg.asset(
        key=key,
        group_name=place.name(GROUP),
        kinds={"python"},
        owners=[owner if "@" in (owner := shared_owner(recipe)) else f"team:{owner}"],
        description="SLI attainment, and the spent share of each error budget; also `plinth ops sli`.",
        code_version="1",
        check_specs=checks,
        metadata=page_link(place.pages),
        required_resource_keys=set(needed(place)),
    )
    def service_levels(context: dg.AssetExecutionContext) -> Iterator[Any]:
        ctx, until = opened(context, place), time.time()
        wanted = objectives.load(ctx.workspace)
        tallies = objectives.tallies(ctx, wanted, until, objectives.completeness(ctx))
        found = budgets(tallies, wanted, until)
        yield dg.MaterializeResult(metadata=_shown(tallies, found, wanted, until), check_results=_checked(found))

    return service_levels


def _shown(tallies: Sequence[Tally], found: Sequence[ErrorBudget], wanted: Objectives, until: float) -> dict[str, Any]:

    rows = [
        LevelRow(one.indicator, one.target, one.spent, _days(tallies, one.indicator, wanted, until)) for one in found
    ]
    header = ["indicator", "attainment", "objective", "budget spent", "total", "measure"]
    cells = [
        [one.indicator, *map(_percent, (one.value, one.target, one.spent)), f"{one.total_s:,.0f} {one.unit}",
         "" if one.measure is None else f"{one.measure:,.4g} {one.measured_in}"]
        for one in found
    ]  # fmt: skip
    return {
        "budgets": picture(figure, rows),
        "spent": len([one for one in found if one.is_spent]),
        "levels": dg.MetadataValue.md(table(header, cells)),
        "query": dg.MetadataValue.md("`plinth ops sli export DIR`, then `duckdb -init DIR/views.sql -c 'from levels'`"),
    }


def _days(tallies: Sequence[Tally], indicator: str, wanted: Objectives, until: float) -> list[float | None]:
    own = [one for one in tallies if one.indicator == indicator]
    days = max(1, round(wanted.window_days))
    return [value(own, indicator, until - 86400 * (day + 1), until - 86400 * day) for day in reversed(range(days))]


def _checked(found: Sequence[ErrorBudget]) -> list[dg.AssetCheckResult]:
    spent = [one.indicator for one in found if one.is_spent]
    unknown = [one.indicator for one in found if one.value is None]
    return [
        dg.AssetCheckResult(
            check_name=name,
            passed=not names,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"indicators": ", ".join(names) or "none"},
        )
        for name, names in ((BUDGETS, spent), (MEASURED, unknown))
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


#: Maximum length of a bar; the number is printed next to it.
MOST = 2.0


class LevelRow(NamedTuple):
    """Row of the plot for one indicator.

    Args:
        spent: spent share of the error budget; None without data.
        days: good share of each day, oldest first; None without data.
    """

    indicator: str
    target: float
    spent: float | None
    days: Sequence[float | None]


def figure(rows: Sequence[LevelRow]) -> "Figure":
    """Plot error budgets (left) and the good share of each day (right).

    The dashed line marks an exhausted budget. Days below the objective are orange.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH_INCHES, 0.28 * len(rows) + 0.9), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True, width_ratios=(1, 1.3))
    for place, row in enumerate(rows):
        if row.spent is None:
            left.text(0.02, place, "nothing measured", va="center", fontsize=8, color=SOFT_INK)
        else:
            left.barh(place, min(row.spent, MOST), height=0.55, color=WARNING if row.spent >= 1 else ACCENT)
            left.text(min(row.spent, MOST) + 0.04, place, f"{row.spent:.0%}", va="center", fontsize=8)
        for day, share in enumerate(row.days):
            if share is not None:
                bad = share < row.target
                right.plot(day, place, "s", markersize=5, color=WARNING if bad else ACCENT, alpha=1 if bad else 0.45)
    left.axvline(1, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)), zorder=0)
    left.set_xlim(0, MOST + 0.5)
    left.set_xticks([0, 1, 2], ["0%", "spent", "200%"])
    left.set_yticks(range(len(rows)), [row.indicator for row in rows])
    left.invert_yaxis()
    left.set_xlabel("error budget")
    days = max((len(row.days) for row in rows), default=0)
    right.set_xlim(-0.8, days - 0.2)
    right.set_xticks([0, max(0, days - 1)], [f"{days - 1} days ago", "now"] if days > 1 else ["", "now"])
    right.set_xlabel("days; orange: below the objective")
    for axes in (left, right):
        axes.tick_params(length=0)
    return fig


DEFINITIONS = AddedDefinitions("service_levels", definitions)
