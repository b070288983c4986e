"""`service_levels`: indicators of all runs and assets of the workspace, their error budgets; made anew by schedule.

It depends on the clock, so it is no stage of the recipe: it publishes no manifest, and nothing reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from plinth.operation import objectives
from plinth.operation.indicators import ErrorBudget, Objectives, Tally, budgets, value
from plinth.recipe.recipe import Recipe
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import page_link, picture, table
from plinth_assets.framework.resources import PlinthResource, Session

ASSET, GROUP = "service_levels", "operation"
BUDGETS, MEASURED = "error_budgets", "everything_measured"


def asset(recipe: Recipe, pages: str = "") -> dg.AssetsDefinition:
    """The asset with two checks, which block nothing: a spent budget; an indicator of which nothing is known.

    Args:
        pages: where the pages of the workspace are served; linked.
    """
    checks = [
        dg.AssetCheckSpec(BUDGETS, asset=ASSET, description="Every error budget has some left."),
        dg.AssetCheckSpec(MEASURED, asset=ASSET, description="Every indicator has been measured within its window."),
    ]

    @dg.asset(
        key=ASSET,
        group_name=GROUP,
        kinds={"python"},
        owners=[owner if "@" in (owner := shared_owner(recipe)) else f"team:{owner}"],
        description="Good seconds of all by indicator, and how much of each error budget is spent: `plinth ops sli`.",
        code_version="1",
        check_specs=checks,
        metadata=page_link(pages),
    )
    def service_levels(plinth: PlinthResource, session: dg.ResourceParam[Session]) -> Iterator[Any]:
        from plinth_registry import service_levels

        ctx, until = plinth.context(session), time.time()
        wanted = objectives.load(ctx.workspace)
        tallies = service_levels.tallies(ctx, wanted, until)
        found = budgets(tallies, wanted, until)
        yield dg.MaterializeResult(metadata=_shown(tallies, found, wanted, until), check_results=_checked(found))

    return service_levels


def _shown(tallies: Sequence[Tally], found: Sequence[ErrorBudget], wanted: Objectives, until: float) -> dict[str, Any]:
    from plinth.report import levels_figure

    rows = [
        levels_figure.LevelRow(one.indicator, one.target, one.spent, _days(tallies, one.indicator, wanted, until))
        for one in found
    ]
    header = ["indicator", "good", "objective", "budget spent", "seconds", "measure"]
    cells = [
        [one.indicator, *map(_percent, (one.value, one.target, one.spent)), f"{one.total_s:,.0f} {one.unit}",
         "" if one.measure is None else f"{one.measure:,.4g} {one.measured_in}"]
        for one in found
    ]  # fmt: skip
    return {
        "budgets": picture(levels_figure.figure, rows),
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
