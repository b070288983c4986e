"""The share of a stage's tasks that one of several processes begins with, for schedulers that know only indices.

Processes 0 … n-1 run the same command on the same workspace and never speak to each other. Each runs its own share of
a stage first, then what has no record yet of the others' shares, last tasks first. So a process that was killed, or
that has not begun, delays the others and stops none; work done twice gives the same record, and the first one stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from plinth.errors import RecipeError


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
