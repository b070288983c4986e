"""Shell under a scheduler: a signal at any moment stops the command, and what had not begun does not begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from plinth.launch import base

#: Notes that it has begun, leaves in order at SIGTERM, and would work for minutes.
COMMAND = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); "
    "open(sys.argv[1], 'w').write('begun'); time.sleep(600)"
)


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def stopped_after(folder: Path, milliseconds: int) -> None:
    """Start the command, and stop it."""
    where = folder / f"{milliseconds}"
    words = base.logged([sys.executable, "-S", "-E", "-c", COMMAND, f"{where}.begun"], folder / f"{where}.log")
    shell = subprocess.Popen(["bash", "-c", words], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        time.sleep(milliseconds / 1000)
        os.kill(shell.pid, signal.SIGTERM)
        assert shell.wait(60) in (base.LEFT, -signal.SIGTERM), f"stopped after {milliseconds} ms"
        until = time.monotonic() + 60
        while not group_is_empty(shell.pid):
            assert time.monotonic() < until, f"something outlives the shell that was stopped after {milliseconds} ms"
            time.sleep(0.01)
    finally:
        if not group_is_empty(shell.pid):
            os.killpg(shell.pid, signal.SIGKILL)


def test_a_signal_at_any_moment_stops_it(tmp_path: Path) -> None:
    """In steps of 2 ms from the beginning on: in bash before its trap, before the command, before its number is known,
    before Python's own handler, and after."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(stopped_after, tmp_path), range(0, 80, 2)))


def test_a_signal_before_the_command_keeps_it_from_beginning(tmp_path: Path) -> None:
    """The signal comes to a shell that is stopped before it starts the command: as if it were slow."""
    lines = base.waiting(f"touch {tmp_path / 'begun'}")
    held = ["kill -STOP $$", *lines]  # the trap is the second line; the signal waits until the shell goes on
    trap, others = lines[:2], lines[2:]
    shell = subprocess.Popen(["bash", "-c", "\n".join([*trap, held[0], *others, 'exit "$status"'])])
    while subprocess.run(["ps", "-o", "state=", str(shell.pid)], capture_output=True, text=True).stdout.strip() != "T":
        time.sleep(0.01)
    shell.send_signal(signal.SIGTERM)
    shell.send_signal(signal.SIGCONT)
    assert shell.wait(60) == base.LEFT
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("status", [0, 3, 75])
def test_the_status_of_the_command_is_kept(status: int) -> None:
    lines = [*base.waiting(f"bash -c 'exit {status}'"), 'exit "$status"']
    assert subprocess.run(["bash", "-c", "\n".join(lines)]).returncode == status
