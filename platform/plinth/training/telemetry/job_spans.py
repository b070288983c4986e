"""When the jobs of a run held their ranks: what is paid for, whatever they did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: How a job ends when it is not killed.
JOB_ENDS = frozenset({"finished", "failed", "stopped"})

#: Events after which the job before is over, however it ended.
_NEXT_JOB = frozenset({"submitted", "vanished", "job_started"})


class JobSpan(NamedTuple):
    """One job: Unix seconds, and the ranks that it held."""

    begin: float
    end: float
    ranks: int

    @property
    def rank_s(self) -> float:
        """Rank-seconds."""
        return (self.end - self.begin) * self.ranks


def job_spans(events: Iterable[Mapping[str, Any]]) -> list[JobSpan]:
    """Of each job, from when its supervisor is up; one that was killed ends with its last event."""
    found: list[JobSpan] = []
    begin, last, ranks = math.nan, 0.0, 1
    for event in events:
        now, kind = float(event["time"]), event["event"]
        if kind in _NEXT_JOB and not math.isnan(begin):  # nothing measured the end of the job before: it was killed
            found.append(JobSpan(begin, last, ranks))
            begin = math.nan
        if kind == "job_started":
            ranks, begin = int(event["ranks"]), now
        if kind in JOB_ENDS and not math.isnan(begin):
            found.append(JobSpan(begin, now, ranks))
            begin = math.nan
        last = now
    return [*found, JobSpan(begin, last, ranks)] if not math.isnan(begin) else found
