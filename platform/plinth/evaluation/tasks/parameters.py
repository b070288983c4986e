"""A set of tasks, as a recipe names it."""

from __future__ import annotations

from importlib.util import find_spec

from pydantic import Field, model_validator

from plinth.records import Frozen

INSTALL = "pip install 'plinth[tasks]' --constraint constraints.txt"


def installed() -> bool:
    """Whether lm-evaluation-harness is there; it is not imported."""
    return all(find_spec(name) is not None for name in ("lm_eval", "datasets"))


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

    @model_validator(mode="after")
    def _can_run(self) -> TaskSet:
        if not installed():
            raise ValueError(f"tasks need lm-evaluation-harness, which is not installed: {INSTALL}")
        return self
