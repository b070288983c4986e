"""Conformance tests of launchers: the contract of `plinth.launch.base.Launcher`, checked with real jobs.

    class TestMyLauncher(Conformance):            # in a test module of your package
        kind = "mine"

        def launcher(self, nodes=1):
            return MyLauncher(Launch(kind="mine", nodes=nodes, ranks=nodes, options={...}), grace_s=1.0)

`pytest` collects the tests that the class inherits. Each test submits small Python programs and reads what they write
to the job's directory. `SeveralNodes` adds the tests of launchers that start a job on more than one machine.

The tests need pytest and a scheduler that runs the jobs. A test that simulates a scheduler overrides `submitted`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from plinth.errors import LaunchError
from plinth.launch.base import HANDLE, LEFT, Handle, JobStatus, Launcher, read_handle

#: Prepended to each program: counts the starts of the job, so that a second start is noticed.
_COUNTED = """
import json, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path({directory!r})
with open(here / "starts", "a") as starts:
    starts.write("x")
number = len((here / "starts").read_text())
"""

#: Writes a line, then waits until `finish` exists; on SIGTERM it saves and leaves.
_WAIT = """
def leave(*_):
    print("saved", flush=True)
    sys.exit({left})
signal.signal(signal.SIGTERM, leave)
print("started", flush=True)
while not (here / "finish").exists():
    time.sleep(0.05)
print("finished", flush=True)
"""

#: Ignores SIGTERM, as its child does. Both change a file continually, so that it stands still when both have ended.
_STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
beat = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
beat += "while True: pathlib.Path(sys.argv[1]).write_text(str(time.time())); time.sleep(0.05)"
subprocess.Popen([sys.executable, "-c", beat, str(here / "child")])
print("started", flush=True)
while True:
    (here / "parent").write_text(str(time.time()))
    time.sleep(0.05)
"""

_REPORT = """
try:
    import plinth_conformance_planted
    planted = True
except ImportError:
    planted = False
node = {name: os.environ.get(name) for name in ("PLINTH_NODE", "PLINTH_NODES", "PLINTH_ADDRESS")}
report = {"words": sys.argv[1:], "planted": planted, "input": sys.stdin.read(), **node}
(here / f"report-{node['PLINTH_NODE'] or 0}.json").write_text(json.dumps(report))
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
"""

#: Words that a shell, YAML, a template or a batch script changes if they are not quoted.
_WORDS = ["a b", "", "$HOME", "`id`", "it's", '"', "*", "~", "%j", "{{ x }}", "yes", "a\nb", "ä"]

PLANTED = "plinth_conformance_planted.py"


class Conformance(ABC):
    """Tests of one launcher. Subclass it in a test module, with a name that begins with `Test`."""

    #: `launcher` in the handles, which is the name of the launcher's entry point.
    kind: ClassVar[str]
    #: Maximum seconds to wait for a job to start or to end.
    patience_s: ClassVar[float] = 300.0
    #: Seconds that a job which does not stop gets before its processes are ended.
    stubborn_s: ClassVar[float] = 1.0
    __test__: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.__test__ = cls.__name__.startswith("Test")

    @abstractmethod
    def launcher(self, nodes: int = 1) -> Launcher:
        """Return a new launcher without cached answers, as another process would make."""

    def workspace(self, tmp_path: Path) -> Path:
        """Return a folder at the same path on this machine and on the machines of the jobs."""
        return tmp_path / "work space"

    def submitted(self, handle: Handle) -> None:  # noqa: B027  a real scheduler needs no override
        """Start the job, if the scheduler is simulated; a real scheduler needs nothing. Called after each submission,
        which may have returned a job that is alive."""

    # ---- submit and find -------------------------------------------------------------------------

    def test_handle_is_stored_and_found_by_another_process(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        _equal("find before the first submission", self.launcher().find(run), None)
        handle = self._submit(run, _WAIT)
        try:
            _equal("the handle's launcher", handle.launcher, self.kind)
            _check("the handle has an id, a start and a host", handle.id and handle.started and handle.host, handle)
            _equal("the handle in handle.json", read_handle(run), handle)
            _equal("find in another process", self.launcher().find(run), handle)
        finally:
            self._end(handle)

    def test_second_submission_adopts_the_live_job(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        handle = self._submit(run, _WAIT)
        try:
            _equal("submit while the job is alive", self._submit(run, _WAIT), handle)
            self._until_started(run, handle)
            _equal("submit while the job runs", self._submit(run, _WAIT), handle)
            (run / HANDLE).unlink()  # as if the submitter had died before it wrote the handle
            _equal("submit after the handle was lost", self._submit(run, _WAIT), handle)
            _equal("find after the handle was lost", self.launcher().find(run), handle)
            self._finish(run, handle)
            _equal("starts of the job", _starts(run), 1)
        finally:
            self._end(handle)

    def test_submissions_at_the_same_moment_start_one_job(self, tmp_path: Path) -> None:
        run, handles = self._run(tmp_path), list[Handle]()
        command = _program(run, _WAIT)
        launchers = [self.launcher() for _ in range(3)]
        threads = [
            threading.Thread(target=lambda one=one: handles.append(one.submit(command, run, run / "job.log")))
            for one in launchers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            _equal("different handles of three submissions", len({handle.model_dump_json() for handle in handles}), 1)
            _equal("submissions that returned", len(handles), 3)
            self.submitted(handles[0])
            self._until_started(run, handles[0])
            self._finish(run, handles[0])
            _equal("starts of the job", _starts(run), 1)
        finally:
            for handle in handles:
                self._end(handle)

    def test_job_outlives_its_submitter(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        command = _program(run, _WAIT)

        def submit() -> None:
            os.setsid()
            self.launcher().submit(command, run, run / "job.log")
            os.killpg(0, signal.SIGKILL)

        submitter = multiprocessing.get_context("fork").Process(target=submit)
        submitter.start()
        submitter.join(self.patience_s)
        _equal("exit status of the submitter", submitter.exitcode, -signal.SIGKILL)
        handle = self.launcher().find(run)
        if handle is None:
            raise AssertionError("find returns None after the submitter was killed; expected its job's handle")
        try:
            self.submitted(handle)
            self._until_started(run, handle)
            self._finish(run, handle)
        finally:
            self._end(handle)

    def test_copied_directory_has_no_job(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        handle = self._submit(run, _WAIT)
        try:
            copy = shutil.copytree(run, run.with_name("copy-of-a-run"))
            _equal("find in a copy of the directory", self.launcher().find(copy), None)
        finally:
            self._end(handle)

    def test_invalid_handle_is_refused(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        (run / HANDLE).write_text("{")
        try:
            found = self.launcher().find(run)
        except LaunchError:
            return
        raise AssertionError(f"find with an invalid handle.json returned {found}; expected LaunchError")

    # ---- poll, exit statuses, restart ------------------------------------------------------------

    def test_status_and_logs_from_start_to_end(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        log = run / "job.log"
        _equal("logs before the first submission", self.launcher().logs(log, 5), "")
        handle = self._submit(run, _WAIT)
        try:
            _check("a submitted job is alive", self.launcher().poll(handle).alive, handle)
            self._until_started(run, handle)
            self._until(lambda: self.launcher().poll(handle) is JobStatus.RUNNING, "poll returns running", run)
            self._until(lambda: "started" in self.launcher().logs(log, 5), "logs contain the job's output", run)
            self._finish(run, handle)
            self._until(lambda: "finished" in self.launcher().logs(log, 1), "logs contain the last line", run)
            _check("logs(log, 1) is one line", "started" not in self.launcher().logs(log, 1), log.read_text())
            _equal("find after the end", self.launcher().find(run), handle)
        finally:
            self._end(handle)

    def test_ended_job_can_be_submitted_again(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        first = self._submit(run, "")
        self._until_gone(run, first)
        second = self._submit(run, "")
        _check("the second job has another handle", second != first, second)
        _equal("status of the first job", self.launcher().poll(first), JobStatus.GONE)
        self._until_gone(run, second)
        _equal("starts of two jobs", _starts(run), 2)

    def test_named_failure_is_not_repeated(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        self._until_gone(run, self._submit(run, "print('failed', flush=True); sys.exit(3)"))
        _equal("starts of a job with exit status 3", _starts(run), 1)
        _check("the output is in the log", "failed" in (run / "job.log").read_text(), run / "job.log")

    def test_job_that_left_runs_again(self, tmp_path: Path) -> None:
        """A scheduler that requeues jobs starts the job again after exit status 75; otherwise, `submit` does."""
        run = self._run(tmp_path)
        program = f"sys.exit({LEFT} if number == 1 else 0)"
        self._until_gone(run, self._submit(run, program))
        if _starts(run) == 1:
            self._until_gone(run, self._submit(run, program))
        _equal("starts of a job with exit statuses 75, 0", _starts(run), 2)

    def test_job_that_dies_is_gone_in_the_end(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        self._until_gone(run, self._submit(run, "os.kill(os.getpid(), signal.SIGKILL)"))

    def test_missing_program_is_an_error_or_ends_the_job(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        try:
            handle = self.launcher().submit(["/no/such/program"], run, run / "job.log")
        except LaunchError:
            return
        self.submitted(handle)
        self._until_gone(run, handle)

    def test_another_jobs_id_is_not_this_job(self, tmp_path: Path) -> None:
        """Schedulers reuse ids; `started` distinguishes the jobs."""
        run = self._run(tmp_path)
        handle = self._submit(run, _WAIT)
        try:
            impostor = handle.model_copy(update={"started": "another"})
            _equal("status of a job with another start", self.launcher().poll(impostor), JobStatus.GONE)
            self.launcher().cancel(impostor, 0.0)
            _check("cancel of a job with another start ends nothing", self.launcher().poll(handle).alive, handle)
            self._finish(run, handle)
            _equal("starts of the job", _starts(run), 1)
        finally:
            self._end(handle)

    # ---- cancel ----------------------------------------------------------------------------------

    def test_cancel_lets_the_job_save_and_does_not_repeat_it(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        handle = self._submit(run, _WAIT)
        self._until_started(run, handle)
        self.launcher().cancel(handle, self.patience_s)
        self._until_gone(run, handle)
        logs = self.launcher().logs(run / "job.log", 20)
        _check("a canceled job gets SIGTERM, and its last lines are in the log", "saved" in logs, logs)
        self.launcher().cancel(handle, self.patience_s)  # nothing is left to do
        time.sleep(1.0)
        _equal("starts of a canceled job", _starts(run), 1)
        _equal("status of a canceled job", self.launcher().poll(handle), JobStatus.GONE)

    def test_cancel_ends_a_job_that_ignores_it_with_its_children(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        handle = self._submit(run, _STUBBORN)
        beats = run / "parent", run / "child"
        self._until(lambda: all(beat.exists() for beat in beats), "the job and its child run", run)
        self.launcher().cancel(handle, self.stubborn_s)
        self._until_gone(run, handle)
        for beat in beats:
            self._until(lambda beat=beat: _stands_still(beat), f"the {beat.name} process ends", run)  # type: ignore[misc]

    # ---- the job's process -----------------------------------------------------------------------

    def test_process_gets_its_words_and_no_code_from_the_workspace(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        for folder in (run, run.parent.parent):
            (folder / PLANTED).write_text("")
        before = Path.cwd()
        os.chdir(run)
        try:
            handle = self._submit(run, _REPORT, *_WORDS)
        finally:
            os.chdir(before)
        self._until_gone(run, handle)
        report = self._report(run, 0)
        _equal("arguments", report["words"], _WORDS)
        _equal("imported from the working directory of the submitter or the job", report["planted"], False)
        _equal("standard input", report["input"], "")
        log = (run / "job.log").read_text()
        _check("stdout and stderr are in the log", "to stdout\n" in log and "to stderr\n" in log, log)

    # ---- helpers ---------------------------------------------------------------------------------

    def _run(self, tmp_path: Path) -> Path:
        run = self.workspace(tmp_path) / "runs" / "Conformance_1-0123456789ab"
        run.mkdir(parents=True)
        return run

    def _submit(self, run: Path, program: str, *words: str, nodes: int = 1) -> Handle:
        handle = self.launcher(nodes).submit(_program(run, program, *words), run, run / "job.log")
        self.submitted(handle)
        return handle

    def _until(self, condition: Callable[[], object], what: str, run: Path) -> None:
        until = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > until:
                log = run / "job.log"
                said = log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
                raise AssertionError(f"not within {self.patience_s:g} s: {what}\n{said}")
            time.sleep(0.1)

    def _until_started(self, run: Path, handle: Handle) -> None:
        log = run / "job.log"
        self._until(lambda: log.exists() and "started" in log.read_text(), f"job {handle.id} starts", run)

    def _until_gone(self, run: Path, handle: Handle) -> None:
        self._until(lambda: not self.launcher().poll(handle).alive, f"job {handle.id} is gone", run)

    def _finish(self, run: Path, handle: Handle) -> None:
        (run / "finish").touch()
        self._until_gone(run, handle)
        log = (run / "job.log").read_text()
        _check("the job runs to its end", "finished\n" in log, log)

    def _end(self, handle: Handle) -> None:
        self.launcher().cancel(handle, self.stubborn_s)

    def _report(self, run: Path, node: int) -> dict[str, object]:
        path = run / f"report-{node}.json"
        self._until(path.exists, f"node {node} reports", run)
        report: dict[str, object] = json.loads(path.read_text())
        return report


class SeveralNodes(Conformance):
    """Tests of a launcher that can start a job on two machines."""

    def test_each_node_knows_its_number_and_the_first_node(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        handle = self._submit(run, _REPORT, nodes=2)
        self._until_gone(run, handle)
        reports = [self._report(run, node) for node in range(2)]
        _equal("PLINTH_NODE", [report["PLINTH_NODE"] for report in reports], ["0", "1"])
        _equal("PLINTH_NODES", [report["PLINTH_NODES"] for report in reports], ["2", "2"])
        addresses = {report["PLINTH_ADDRESS"] for report in reports}
        _check("PLINTH_ADDRESS is the same on both nodes", len(addresses) == 1 and all(addresses), addresses)


def _program(run: Path, program: str, *words: str) -> list[str]:
    counted = _COUNTED.replace("{directory!r}", repr(str(run)))
    return [sys.executable, "-c", counted + program.replace("{left}", str(LEFT)), *words]


def _starts(run: Path) -> int:
    path = run / "starts"
    return len(path.read_text()) if path.exists() else 0


def _stands_still(path: Path) -> bool:
    before = path.read_text()
    time.sleep(0.5)
    return path.read_text() == before


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def _check(what: str, condition: object, found: object) -> None:
    if not condition:
        raise AssertionError(f"expected: {what}; found {found}")
