"""Whose a Dagster run is and how urgent, as its tags: Dagster's queue orders runs by them and bounds each team.

Does not belong here: the queue of a training job, which its launcher names (`plinth.launch`).
"""

from __future__ import annotations

from typing import Final

from plinth.launch.parameters import NORMAL, Queueing
from plinth.operation.spending import parameters
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace

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
    team = asked.team or parameters.load(workspace).team
    found = {TEAM: team} if team else {}
    return found | ({} if asked.priority == NORMAL else {RUN_PRIORITY: _ORDER[asked.priority]})
