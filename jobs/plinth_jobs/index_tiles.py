"""Tiles of the index of pages: the state of each part of a workspace.

A part that cannot be read is shown as `unknown`, and the other parts are still shown.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.extensions import Catalogue
from plinth.operation import spending, workspace_files
from plinth.operation.spending_ledger import MICROS, Ledger
from plinth.operation.workspace_files import CHECKED
from plinth.recipe.recipe import Recipe
from plinth.report.page import Standing, StateTile
from plinth_jobs.results import candidate_name, file_name


@dataclass(frozen=True)
class AddedTile:
    """Tile that an extension or user package adds as an entry point of `plinth.tiles`.

    Args:
        name: name of the entry point.
        state: function that returns the tile, or None to show no tile.
    """

    name: str
    state: Callable[[Context], StateTile | None]


#: Tiles that are shown after the core tiles.
ADDED = Catalogue("plinth.tiles", "tile", AddedTile, {})
#: Age limit of alerts in seconds.
DAY_S = 86_400.0
#: Warn when this share of a budget is spent.
WARN_SHARE = 0.8


def tiles(ctx: Context, recipe: Recipe | None) -> Iterator[StateTile]:
    """Yield the tile of each part of the workspace. The tile of a part that cannot be read shows `unknown`."""
    parts: list[tuple[str, Callable[[], StateTile | None]]] = []
    if recipe is not None:
        parts.append(("Assets", lambda: _assets(ctx, recipe)))
        if recipe.release is not None:
            parts += [
                ("Release", lambda: _release(ctx, recipe)),
                ("Candidates", lambda: _candidates(ctx, recipe)),
                ("Canary", lambda: _canary(ctx, recipe)),
            ]
    parts += [
        ("Incidents", lambda: _incidents(ctx)),
        ("Alerts, last 24 hours", lambda: _alerts(ctx)),
        ("Checks", lambda: _checks(ctx)),
        ("Budgets", lambda: _budgets(ctx)),
        *((name.replace("_", " ").capitalize(), partial(_added, ctx, name)) for name in ADDED),
    ]
    for label, state in parts:
        try:
            tile = state()
        except Exception as error:  # a broken tile must not hide the others
            why = error.what if isinstance(error, PlinthError) else f"{type(error).__name__}: {error}"
            tile = StateTile(label=label, value="unreadable", note=why, standing="unknown")
        if tile is not None:
            yield tile


def _added(ctx: Context, name: str) -> StateTile | None:
    return ADDED[name].state(ctx)


def _assets(ctx: Context, recipe: Recipe) -> StateTile:
    from plinth_assets.catalog import stages
    from plinth_assets.framework import decide

    catalog = stages(recipe)
    stale = decide(ctx, catalog).stale
    fresh = len(catalog) - len(stale)
    return StateTile(
        label="Assets",
        value=f"{fresh} of {len(catalog)} up to date",
        note=some(stale),
        standing="good" if not stale else "attention",
    )


def _release(ctx: Context, recipe: Recipe) -> StateTile:
    from plinth_registry import decisions

    history = decisions.history(ctx, recipe)
    now, name = history.standing, recipe.required_release().name
    if now.champion is None:
        return StateTile(label="Release", value=f"{name}: none", standing="attention" if history else "none")
    last = [record for record in history if record.version == now.champion][-1]
    return StateTile(
        label="Release",
        value=f"{name} version {now.champion}",
        note=f"champion since {datetime.fromisoformat(last.at).astimezone(UTC):%Y-%m-%d %H:%M} UTC, by {last.by}",
        standing="good",
        href=page_link(ctx, file_name(recipe, candidate_name(str(last.candidate_version)))),
    )


def _candidates(ctx: Context, recipe: Recipe) -> StateTile:
    from plinth_registry import decisions

    held = decisions.pending(ctx, recipe)
    asked = sum(one.waits_for_approval for one in held)
    refused = [f"version {one.version}: {one.refusal}" for one in held if not one.waits_for_approval]
    value = f"{asked} pending approval" if asked else f"{len(held)} blocked by gates" if held else "0 pending"
    standing: Standing = "attention" if held else "good"
    return StateTile(label="Candidates", value=value, note=some(refused, 1), standing=standing)


def _canary(ctx: Context, recipe: Recipe) -> StateTile:
    from plinth_registry import api
    from plinth_registry.canary.watch import page_name

    found = api.canary_status(ctx, recipe)
    if found is None:
        return StateTile(label="Canary", value="none")
    standing: Standing = "bad" if found.trial.decision == "return" else "attention"
    href = page_link(ctx, page_name(found))
    return StateTile(
        label="Canary", value=f"version {found.canary} running", note=found.next, standing=standing, href=href
    )


def _incidents(ctx: Context) -> StateTile:
    """Return the tile of open incidents, which freeze promotions."""
    from plinth_registry.incidents import incidents as recorded

    found = recorded(ctx)
    still = [one for one in found if one.closed is None]
    if not still:
        note = f"{len(found):,} closed" if found else "plinth ops incident open TITLE"
        return StateTile(label="Incidents", value="0 open", note=note, standing="good")
    return StateTile(
        label="Incidents",
        value=f"{len(still)} open",
        note=f"promotions are frozen; {some([one.title for one in still], 1)}",
        standing="bad",
        href=page_link(ctx, f"incident-{still[-1].number}.html"),
    )


def _checks(ctx: Context) -> StateTile:
    """Return the tile with the result of each asset's last checks. Assets with failed checks are not published."""
    last = {
        str(event["asset"]): event
        for event in workspace_files.read(ctx.workspace, math.inf)
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


def _alerts(ctx: Context) -> StateTile:
    """Return the tile with recent alerts from `alerts.jsonl`. A line that cannot be read counts as an alert."""
    since, found = time.time() - DAY_S, list[str]()
    path = ctx.workspace.root / "alerts.jsonl"
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            alert = json.loads(line)
            if float(alert["time"]) >= since:
                found.append(f"{alert.get('job') or 'run'}: {str(alert.get('message')).partition(chr(10))[0]}")
        except (ValueError, TypeError, KeyError, AttributeError):
            found.append("a line of alerts.jsonl is unreadable")
    return StateTile(
        label="Alerts, last 24 hours",
        value=f"{len(found)}" if found else "none",
        note=some(found[::-1], 1),
        standing="bad" if found else "good",
    )


def _budgets(ctx: Context) -> StateTile:
    settings = spending.load(ctx.workspace)
    place, known = spending.ledger_place(ctx.workspace, settings), spending.settings_file(ctx.workspace).exists()
    if not known and "://" not in place and not Path(place).exists():
        return StateTile(label="Budgets", value="none", note="plinth ops cost limit WHOSE AMOUNT")
    counted = [(limit, used) for limit, used in Ledger(place).limits(time.time()) if limit.amount is not None]
    if not counted:
        return StateTile(label="Budgets", value="no limits", note="plinth ops cost limit WHOSE AMOUNT")
    shares = {limit.text: used / limit.amount if limit.amount else float(used > 0) for limit, used in counted}
    text, share = max(shares.items(), key=lambda each: each[1])
    used = next(used for limit, used in counted if limit.text == text)
    standing: Standing = "bad" if share >= 1 else "attention" if share >= WARN_SHARE else "good"
    return StateTile(
        label="Budgets",
        value=f"{share:.0%} spent or reserved",
        note=f"{text}: {used / MICROS:,.2f}; {len(counted)} limits",
        standing=standing,
    )


def page_link(ctx: Context, name: str) -> str:
    """Return the relative link to a page next to the index, or an empty string if the page does not exist."""
    return name if (ctx.workspace.reports / name).exists() else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """Join the first `shown` names into a text, and add the number of the remaining names."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown:,} more" if len(names) > shown else "")
