"""Dagster's jobs over assets, with their schedules and the tags that order their runs, and the definitions that
packages add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import dagster as dg

from plinth.extensions import Catalogue
from plinth.launch.parameters import NORMAL, Queueing
from plinth.operation import spending
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace

# Tags of a Dagster run, its owner and priority: Dagster's queue orders runs by them and bounds each team.

#: Bounded for each value by `concurrency.runs.tag_concurrency_limits` of `dagster.yaml`.
TEAM: Final = "plinth/team"
#: Of each job one run at a time, by the same setting: of two sensors and ticks that ask at once, the second run finds
#: everything done.
JOB: Final = "plinth/job"
#: Of Dagster: runs with the greater number leave the queue first.
RUN_PRIORITY: Final = "dagster/priority"
_ORDER: Final = {"low": "-10", "high": "10"}


def tags(recipe: Recipe, workspace: Workspace) -> dict[str, str]:
    """Tags of every run of a recipe; the team of the workspace's budget where the recipe names none."""
    asked = Queueing() if recipe.training is None else recipe.training.launch.queueing
    team = asked.team or spending.load(workspace).team
    found = {TEAM: team} if team else {}
    return found | ({} if asked.priority == NORMAL else {RUN_PRIORITY: _ORDER[asked.priority]})


@dataclass(frozen=True)
class AddedDefinitions:
    """Assets, jobs, schedules and sensors of a package of the ring or of a user: a member of `plinth.definitions`.

    Args:
        name: of the entry point.
        build: `(recipe, workspace, address of the pages)` -> definitions, without resources or an executor.
        in_runs: False where only Dagster's code location has them, not a run in this process (`plinth run`).
    """

    name: str
    build: Callable[[Recipe, Path, str], dg.Definitions]
    in_runs: bool = True


#: Imported when the code location is built.
ADDED = Catalogue("plinth.definitions", "definitions", AddedDefinitions, {})


class AssetJob(NamedTuple):
    """A job over assets, and the schedule that starts it where there is one."""

    name: str
    selection: dg.AssetSelection
    description: str
    schedule: str = ""
    cron: str = ""
    scheduled: str = ""
    queued: bool = False  # has the priority and quota of the recipe's team

    def job(self, tags: Mapping[str, str] | None = None) -> Any:
        """The job in Dagster."""
        return dg.define_asset_job(
            self.name,
            self.selection,
            executor_def=dg.in_process_executor,
            tags={**(tags or {}), JOB: self.name},
            description=self.description,
        )


def scheduled(job: Any, name: str, cron: str, description: str) -> dg.ScheduleDefinition:
    """The schedule of a job, running from the start; times in UTC."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )


def with_schedule(one: AssetJob) -> dg.Definitions:
    """A job and its schedule."""
    job = one.job()
    return dg.Definitions(jobs=[job], schedules=[scheduled(job, one.schedule, one.cron, one.scheduled)])
