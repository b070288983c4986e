"""The runtime context of a stage, and the share of its tasks that one of several processes begins with. None of it
enters an identity.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from plinth.compute.costs import StepCost
from plinth.compute.engine import Engine, InlineEngine
from plinth.compute.progress import Progress, Silent
from plinth.errors import RecipeError
from plinth.storage.state import State

# The share of a stage's tasks that one of several processes begins with, for schedulers that know only indices.
#
# Processes 0 … n-1 run the same command on the same workspace and never speak to each other. Each runs its own share of
# a stage first, then what has no record yet of the others' shares, last tasks first. So a process that was killed, or
# that has not begun, delays the others and stops none; work done twice gives the same record, and the first one stays.


@dataclass(frozen=True)
class TaskShare:
    """Process `index` of `count`, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> TaskShare | None:
        """From `i/n`; None from nothing.

        Raises:
            RecipeError: it is no index below a count.
        """
        if not text:
            return None
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise RecipeError(
                f"no part {text!r}",
                expected="i/n with i from 0 to n-1, such as --part 0/8",
                remedy="in an array job: --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT, with --array=0-7",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def order(self, tasks: list[int]) -> list[int]:
        """Numbers of tasks in the order in which this process takes them: its own, then from each next share the last
        first, so that two processes meet in its middle."""

        def place(task: int) -> tuple[int, int]:
            away = (task - self.index) % self.count
            return away, -task if away else task

        return sorted(tasks, key=place)


# The runtime context of a stage; none of it enters an identity.
#
# Static configuration (the recipe's frozen parameters) and the runtime context are separate types:
# a stage function is `run(ctx, params, inputs…) -> Manifest`.


@dataclass
class Context(State):
    """The workspace, the engine, where progress is shown, which tasks come first, and what they cost by step.

    `requested_by` is the person who requested the run, if known; `run` the id of the orchestrator's run, if any.
    """

    engine: Engine = field(default_factory=InlineEngine)
    progress: Progress = field(default_factory=Silent)
    share: TaskShare | None = None
    requested_by: str | None = None
    run: str = ""
    costs: defaultdict[str, StepCost] = field(default_factory=lambda: defaultdict(StepCost))
