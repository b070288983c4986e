"""Work that failures lose, also if the ranks continue from copies in memory, fail again before a new step, or roll
back."""

from __future__ import annotations

import time
from collections.abc import Callable

from plinth.training.config import RunConfig
from plinth.training.supervise.job_log import JobLog
from plinth.training.telemetry.timeline import Timeline


def test_lost_work_counts_each_step_once_and_its_seconds_from_the_copy(make: Callable[..., RunConfig]) -> None:
    events = Timeline(make().directory.events)
    lost = JobLog(make().directory)
    lost.begin()
    time.sleep(0.3)  # before the copy: not lost
    for step in (5, 6):
        events.append("step", step=step)
    lost.update()
    events.append("step", step=7)
    first = lost.lose(audit=False, step=6)
    assert (first.from_step, first.steps) == (6, 1)
    assert first.seconds < 0.3
    assert lost.lose(audit=False, step=6).steps == 0  # again, before a new step
    for step in (7, 8, 9):
        events.append("step", step=step)
    events.append("rolled_back", step=7)
    assert lost.lose(audit=False, step=6).steps == 1  # the rollback has undone the others
    assert lost.lost_steps == 2


def test_work_of_a_job_that_vanished_is_lost_once_even_if_its_successor_vanishes_too(
    make: Callable[..., RunConfig],
) -> None:
    run = make().directory
    events = Timeline(run.events)
    events.append("job_started")
    for step in (1, 2):
        events.append("step", step=step)
    lost = JobLog(run).lose_vanished()
    assert lost is not None
    assert (lost.from_step, lost.steps) == (0, 2)
    events.append("vanished", from_step=0, lost_steps=2, lost_s=0.0)
    events.append("job_started")
    assert JobLog(run).lose_vanished() is None
    events.append("step", step=1)
    again = JobLog(run).lose_vanished()
    assert again is not None
    assert again.steps == 1
