"""Tile of the index page: error budgets of the workspace."""

from __future__ import annotations

import time

from plinth.compute.context import Context
from plinth.report.workspace_index import Standing, StateTile
from plinth_jobs.index_tiles import WARN_SHARE, AddedTile
from plinth_ops.service_levels import objectives


def state(ctx: Context) -> StateTile:
    """The budget of which most is spent."""
    found = objectives.measure(ctx, objectives.load(ctx.workspace), time.time())
    spent = {one.indicator: one.spent for one in found if one.is_judged and one.spent is not None}
    if not spent:
        return StateTile(label="Service levels", value="nothing measured", note="no run in the window")
    worst = max((one for one in found if one.indicator in spent), key=lambda one: spent[one.indicator])
    over = [one.indicator for one in found if one.is_spent]
    standing: Standing = "bad" if over else "attention" if spent[worst.indicator] >= WARN_SHARE else "good"
    value = f"{len(over)} of {len(spent)} error budgets spent" if over else f"{len(spent)} within their budgets"
    short = [one.words for one in found if one.total_s and not one.is_judged]
    note = f"{'; '.join([worst.words, *short])}, {objectives.source(ctx.workspace)}"
    return StateTile(label="Service levels", value=value, note=note, standing=standing)


TILE = AddedTile("service_levels", state)
