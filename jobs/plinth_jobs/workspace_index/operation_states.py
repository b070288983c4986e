"""Tiles of the index about operation: open incidents, the last check of every asset.

Does not belong here: corpus, releases, money and service levels (`states`).
"""

from __future__ import annotations

import time

from plinth.compute.context import Context
from plinth.operation import asset_log
from plinth.operation.asset_log import CHECKED
from plinth.report.workspace_index import Standing, StateTile
from plinth_jobs.workspace_index.links import beside, some


def incidents(ctx: Context) -> StateTile:
    """Those that are open: promotions are frozen meanwhile."""
    from plinth_registry.incidents import incidents as recorded

    found = recorded(ctx)
    still = [one for one in found if one.closed is None]
    if not still:
        note = f"{len(found):,} closed" if found else "plinth ops incident open TITLE"
        return StateTile(label="Incidents", value="none open", note=note, standing="good")
    return StateTile(
        label="Incidents",
        value=f"{len(still)} open",
        note=f"promotions are frozen; {some([one.title for one in still], 1)}",
        standing="bad",
        href=beside(ctx, f"incident-{still[-1].number}.html"),
    )


def checks(ctx: Context) -> StateTile:
    """The last suite of each asset: one that did not pass kept its asset from being published."""
    last = {
        str(event["asset"]): event
        for event in asset_log.read(ctx.workspace, time.time())
        if event["event"] == CHECKED
    }
    if not last:
        return StateTile(label="Checks", value="none evaluated")
    blocked = sorted(asset for asset, event in last.items() if not event["passed"])
    warned = sorted(asset for asset, event in last.items() if event["passed"] and event["failures"])
    standing: Standing = "bad" if blocked else "attention" if warned else "good"
    return StateTile(
        label="Checks",
        value=f"{len(last) - len(blocked)} of {len(last)} assets pass",
        note=some(blocked or warned),
        standing=standing,
    )
