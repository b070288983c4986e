"""A set of tasks, as a recipe names it."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class TaskSet(Frozen):
    """Tasks of lm-evaluation-harness that are run together on a checkpoint."""

    include: str = Field(
        description="Folder of task files (YAML, functions, data) in the input folder or at a URI. Data files are "
        "named relative to it; a copy of a hub dataset lies under its name (`allenai/ai2_arc/`)."
    )
    tasks: tuple[str, ...] = Field(
        (),
        description="Tasks, groups or tags of the folder or of lm-evaluation-harness; empty: all of the folder.",
    )
    fewshot: int | None = Field(
        None, ge=0, description="Examples before each question; unset, or where a task fixes none: as the task says."
    )
    limit: int | None = Field(None, ge=1, description="At most so many documents of each task, the first ones.")
    seed: int = Field(1234, ge=0, description="Draws the examples before a question; lm-evaluation-harness' default.")
