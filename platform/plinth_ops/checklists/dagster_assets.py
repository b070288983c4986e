"""Checklists in Dagster: one asset per checklist with one asset check per check, evaluated by schedule.

A warning or an undetermined result is a failed asset check of severity WARN, because neither is a pass. A waived check
passes, with the waiver in its description. Does not belong here: the checks (`plinth_ops.checklists.review`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.errors import MissingError, RequestError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_assets.framework.placement import ALONE, DagsterPlacement
from plinth_assets.framework.present import page_link, table
from plinth_jobs.definitions import AddedDefinitions, AssetJob, with_schedule
from plinth_jobs.recipes import recall
from plinth_ops.checklists import review
from plinth_ops.checklists.review import CHECKLISTS, PURPOSES, CheckedLine, ChecklistName, CheckScope, settings_of

#: Prefix of the asset keys, and the asset group.
GROUP = "checklists"
#: Schedule of all checklists except `incident`, which is evaluated on demand.
CRON = "17 */6 * * *"
#: Name of the job.
JOB = "evaluate_checklists"


def definitions(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.Definitions:
    """Return a workspace's checklist assets and their job."""
    job = with_schedule(
        AssetJob(
            JOB, dg.AssetSelection.groups(place.name(GROUP)), "Evaluate all checklists.",
            "checklists", CRON, "Evaluate the checklists of this workspace four times a day.",
        ),
        place,
    )  # fmt: skip
    own = dg.Definitions(assets=[_asset(name, recipe, workspace, place) for name in CHECKLISTS])
    return dg.Definitions.merge(own, job)


def key_of(name: ChecklistName, place: DagsterPlacement = ALONE) -> dg.AssetKey:
    """Return the Dagster asset key of a checklist."""
    return place.key(f"{GROUP}/{name}")


def _asset(name: ChecklistName, recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.AssetsDefinition:
    lines = review.checks(name)
    specs = [dg.AssetCheckSpec(_named(one.name), asset=key_of(name, place), description=one.claim) for one in lines]

    @dg.asset(
        key=key_of(name, place),
        group_name=place.name(GROUP),
        description=f"{PURPOSES[name]} `plinth ops check {name}`.",
        owners=["team:operation"],
        kinds={"plinth"},
        code_version="1",
        check_specs=specs,
        metadata=page_link(place.pages),
    )
    def _checklist() -> Iterator[Any]:
        found = review.evaluate(_scope(recipe, workspace), lines)
        rows = [[one.name, one.outcome, one.owner, one.evidence, one.remedy] for one in found]
        words = table(["check", "outcome", "owner", "seen", "remedy"], rows)
        yield dg.MaterializeResult(
            metadata={
                "lines": dg.MetadataValue.md(words),
                **{outcome: sum(one.outcome == outcome for one in found) for outcome in ("pass", "warn", "fail")},
                "undetermined": sum(one.outcome == "undetermined" for one in found),
            }
        )
        for one in found:
            yield _result(one)

    return _checklist


def _result(line: CheckedLine) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.ERROR if line.outcome == "fail" else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(
        check_name=_named(line.name),
        passed=line.outcome in ("pass", "not applicable", "waived"),
        severity=severity,
        description="; ".join(part for part in (line.outcome, line.evidence, line.waiver) if part),
        metadata={"remedy": line.remedy, "owner": line.owner},
    )


def _scope(recipe: Recipe, workspace: Path) -> CheckScope:
    ctx = Context(Workspace(workspace))
    try:
        path = recall(workspace)
    except (MissingError, RequestError):
        path = None
    return CheckScope(ctx, recipe, path, settings_of(ctx.workspace))


def _named(name: str) -> str:
    """Return the name of a check with `_` in place of `-`, as Dagster requires."""
    return name.replace("-", "_")


DEFINITIONS = AddedDefinitions("checklists", definitions)
