"""The conformance tests themselves: each of them fails for a launcher that breaks the contract in one way."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from plinth.launch import base
from plinth.launch.base import Handle, JobStatus
from plinth.launch.conformance import Conformance, SeveralNodes
from plinth.launch.local import LocalLauncher


class Broken(LocalLauncher):
    """A launcher with one method that is not the contract's."""

    def __init__(self, **methods: Callable[..., object]) -> None:
        for name, method in methods.items():
            setattr(self, name, lambda *args, method=method: method(self, *args))


def start_again(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
    return base.write_handle(directory, self._start(command, directory, log))


def words_split(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
    return LocalLauncher.submit(self, [*command[:3], *" ".join(command[3:]).split()], directory, log)


def nothing(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
    return LocalLauncher.submit(self, ["true"], directory, log)


def in_the_working_directory(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
    words = ["env", "-u", "PYTHONSAFEPATH", f"PYTHONPATH={directory}", *command]
    return LocalLauncher.submit(self, words, directory, log)


def below_its_submitter(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
    with log.open("ab") as stream:
        child = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
    ticks = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    handle = Handle(launcher="local", id=str(child.pid), started=f"{boot}:{ticks}", host=os.uname().nodename)
    return base.write_handle(directory, handle)


def repeated(times: int) -> Callable[..., Handle]:
    def submit(self: LocalLauncher, command: Sequence[str], directory: Path, log: Path) -> Handle:
        loop = 'for i in $(seq "$0"); do "$@" && break; done'
        return LocalLauncher.submit(self, ["bash", "-c", loop, str(times), *command], directory, log)

    return submit


def by_number(self: LocalLauncher, handle: Handle) -> JobStatus:
    return JobStatus.RUNNING if Path(f"/proc/{handle.id}").exists() else JobStatus.GONE


def kill_by_number(self: LocalLauncher, handle: Handle, grace_s: float) -> None:
    if by_number(self, handle).alive:
        os.kill(int(handle.id), signal.SIGKILL)


def only_ask(self: LocalLauncher, handle: Handle, grace_s: float) -> None:
    if self.poll(handle).alive:
        os.kill(int(handle.id), signal.SIGTERM)


#: Test that must fail, by the fault.
FAULTS: list[tuple[str, str, dict[str, Callable[..., object]]]] = [
    ("handle_is_stored", "find in another process", {"find": lambda self, directory: None}),
    ("second_submission", "submit while the job is alive", {"submit": start_again}),
    ("same_moment", "different handles", {"submit": start_again}),
    ("invalid_handle", "expected LaunchError", {"find": lambda self, directory: None}),
    ("status_and_logs", "a submitted job is alive", {"poll": lambda self, handle: JobStatus.GONE}),
    ("status_and_logs", "poll returns running", {"poll": lambda self, handle: JobStatus.PENDING}),
    ("status_and_logs", "is one line", {"logs": lambda self, log, lines: log.read_text() if log.exists() else ""}),
    ("ended_job", "is gone", {"poll": lambda self, handle: JobStatus.RUNNING}),
    ("named_failure", "exit status 3", {"submit": repeated(2)}),
    ("job_that_left", "exit statuses 75, 0", {"submit": nothing}),
    ("another_jobs_id", "another start", {"poll": by_number}),
    ("another_jobs_id", "runs to its end", {"cancel": kill_by_number}),
    ("lets_the_job_save", "gets SIGTERM", {"cancel": kill_by_number}),
    ("ignores_it", "is gone", {"cancel": only_ask}),
    ("gets_its_words", "arguments", {"submit": words_split}),
    ("gets_its_words", "imported", {"submit": in_the_working_directory}),
    ("outlives", "not within", {"submit": below_its_submitter}),
]


@pytest.mark.parametrize(("test", "says", "methods"), FAULTS)
def test_a_fault_is_found(test: str, says: str, methods: dict[str, Callable[..., object]], tmp_path: Path) -> None:
    class Faulty(Conformance):
        kind: ClassVar[str] = "local"
        patience_s: ClassVar[float] = 2.0
        stubborn_s: ClassVar[float] = 0.2

        def launcher(self, nodes: int = 1) -> LocalLauncher:
            return Broken(**methods)

    (name,) = [each for each in vars(Conformance) if each.startswith("test_") and test in each]
    try:
        with pytest.raises(AssertionError, match=says):
            getattr(Faulty(), name)(tmp_path)
    finally:
        end_all(tmp_path)


def end_all(folder: Path) -> None:
    """Kill what a faulty launcher left."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            process.kill()


def test_a_job_on_one_node_of_two_is_found(tmp_path: Path) -> None:
    class Faulty(SeveralNodes):
        kind: ClassVar[str] = "local"
        patience_s: ClassVar[float] = 1.0

        def launcher(self, nodes: int = 1) -> LocalLauncher:
            return LocalLauncher()

    with pytest.raises(AssertionError, match="node 1 reports"):
        Faulty().test_each_node_knows_its_number_and_the_first_node(tmp_path)
