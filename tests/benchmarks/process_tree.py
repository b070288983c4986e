"""CPU time and memory of a command and of all processes that it starts, read once a second."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil


def timed(command: Sequence[str], log: Path) -> dict[str, float]:
    """Wall clock, CPU seconds and the largest memory of a command, its own share of pages that processes have together.

    CPU seconds of a process that ends between two readings count up to the reading before.

    Raises:
        SystemExit: it fails; its output is in `log`.
    """
    started, seconds, peak = time.monotonic(), dict[tuple[int, float], float](), 0
    with log.open("wb") as out:
        process = psutil.Popen(list(command), stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        while process.poll() is None:
            memory = 0
            for each in _session(process.pid):
                try:
                    times = each.cpu_times()
                    seconds[each.pid, each.create_time()] = times.user + times.system
                    memory += each.memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, memory)
            time.sleep(1.0)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{log.read_text()[-3000:]}")
    return {"wall_s": time.monotonic() - started, "cpu_s": sum(seconds.values()), "peak_mb": peak / 1e6}


def _session(leader: int) -> list[psutil.Process]:
    """Processes of a command: its descendants, and those of its session that have lost their parent."""
    found = {process.pid: process for process in _descendants(leader)}
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                found[process.pid] = process
        except OSError:
            continue
    return list(found.values())


def _descendants(leader: int) -> Iterator[psutil.Process]:
    try:
        yield from psutil.Process(leader).children(recursive=True)
    except psutil.Error:
        return
