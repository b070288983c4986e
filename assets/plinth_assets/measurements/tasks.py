"""`tasks/NAME`: tasks of lm-evaluation-harness from local files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.evaluation.gate import release_gate
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement
from plinth.extensions import late
from plinth.records import Manifest
from plinth_registry.gates.facts import Evidence, TaskFacts, TaskScore
from plinth_registry.gates.margins import WHOLE, compared, each_within, subject_of
from plinth_registry.gates.result import GateResult, missing
from plinth_registry.gates.settings import TaskPolicy


def read(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> TaskFacts:
    """Tasks of all sets."""
    return TaskFacts(tasks={task: score for made in found.values() for task, score in _tasks(made.stats).items()})


def _tasks(stats: Mapping[str, Any]) -> dict[str, TaskScore]:
    counts = ("documents", "damaged")
    return {task: TaskScore(**{name: one[name] for name in counts}) for task, one in stats["tasks"].items()}


def tasks(asked: TaskPolicy, evidence: Evidence) -> GateResult:
    """Every metric of every task within the margin of the champion."""
    known = evidence.of("tasks", TaskFacts)
    if known is None or not known.tasks:
        return missing("tasks")
    empty = sorted(name for name, one in known.tasks.items() if one.documents - one.damaged <= 0)
    if empty:
        return missing("tasks", f"nothing measured of {', '.join(empty)}")
    lines, closed = compared("tasks", "tasks", evidence)
    if closed is not None:
        return closed
    own = [one for one in lines if one.slice == WHOLE]
    unseen = sorted(set(known.tasks) - {subject_of(one) for one in own})
    if unseen:
        return missing("tasks", f"{', '.join(unseen)} not compared with the champion")
    return each_within("tasks", own, asked.margin, asked.min_items)


MEASUREMENT = Measurement(
    name="tasks",
    description="Tasks of lm-evaluation-harness from local files.",
    asset="tasks",
    stages=late("plinth_assets.tasks:stages"),
    family=True,
    key="evaluation.tasks",
    facts=TaskFacts,
    read=read,
    recount=late("plinth_assets.measurements.tasks_items:recount"),
    pairs=late("plinth_assets.measurements.tasks_items:pairs"),
    headings={"tasks": "Tasks"},
    scores=late("plinth_assets.measurements.tasks_items:scores"),
    section=late("plinth_assets.measurements.tasks_items:section"),
    position=4,
)

GATE = release_gate(tasks, TaskPolicy, "tasks", ("tasks", "comparison"))
