"""CPU seconds of calls and of processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the CPU seconds of the fastest of several calls."""
    return min(seconds(work) for _ in range(repeats))


def with_children(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, in this process and in those that it starts and waits for."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in both)

    started = used()
    work()
    return used() - started


def of_process(pid: int) -> float:
    """Return the CPU seconds of a process, including start-up and compilation."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
