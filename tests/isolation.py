"""Isolation of tests: each gets the same process state and fails if it leaves another; and the cost of each.

    signals     SIGINT, SIGQUIT and SIGTERM are reset before anything starts: a background job of a shell ignores some
    state       handlers, working directory, environment, umask, threads and processes are compared after each test.
                A test that leaves a difference fails with its name; the difference is undone, so the next is not hurt.
                What a fixture of a module or of the session sets up may stay until that fixture is torn down
    limits      LIMIT_S per test; pytest-timeout fails a test that exceeds it, with the stacks of all threads. A process
                that does not even hear the signal ends after HUNG_S
    costs       the last lines of a session name the tests with the most CPU seconds and the largest processes

A process counts as left behind if it is a child, or if it carries MARK in its environment and belongs to no process
that is expected.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

#: Timeout in seconds per test by marker. It ends tests that hang and is not a measure of speed: ten times the need of a
#: busy machine.
LIMIT_S = {"exhaustive": 3600, "slow": 1200, "": 300}
#: Seconds after which a process ends that hangs in a library: longer than every limit. The timer is a thread, so it is
#: set again once in SET_S and not for each test: on busy cores, waiting for a thread takes longer than most tests.
HUNG_S, SET_S = 4000, 100
#: Markers of tests that are warned still of what they leave behind; it is undone as well.
WARNED = ("slow", "exhaustive")
#: Seconds that threads and processes may take to end after their test.
GRACE_S = 10.0
#: Number of tests that the last lines name.
NAMED = 10
#: Variable that names the test process in the environment of everything that it starts.
MARK = "PLINTH_TEST_PROCESS"
#: Variables that pytest changes, or that a library or Plinth sets once and for all, by their first characters.
LIBRARY_VARIABLES = (
    *("PYTEST_", "PYTHONSAFEPATH", "TOKENIZERS_PARALLELISM", "GX_ANALYTICS_ENABLED", "RAY_", "KMP_", "HF_XET_"),
    *("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_SUPPRESS_PRINTING_URL", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"),
    *("DS_ACCELERATOR", "CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_"),
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)
#: Threads and processes that a library or Plinth starts once and keeps for the next use, until the process ends.
KEPT_THREADS = ("fsspecIO", "asyncio_", "tqdm_monitor", "plinth-time-exchange")
KEPT_PROCESSES = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver)|plinth\.evaluation\.engine |worker_process --owned \d+ \d+ [\d.]+ "
    r"|assets\.framework\.data_docs|^ray::|/ray/"  # agents of a node end with it; killed, they take the node with them
)

SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
ABSENT = object()
State = dict[tuple[str, Any], Any]


def reset_signals() -> None:
    """Handle the signals that end a process as one in the foreground does; children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Isolation:
    """Plugin of pytest that compares the state of the test process before and after each test."""

    def __init__(self) -> None:
        reset_signals()
        os.environ[MARK] = str(os.getpid())
        self.processes = Processes()
        self.expected: State = {}
        self.lent: dict[Any, State] = {}  # by fixture: the values before those that it set up
        self.spent_s, self.set_at, self.stderr = 0.0, -math.inf, os.dup(2)  # tests replace 2
        self.costs: list[tuple[float, int, int, str]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                limit = next(limit for mark, limit in LIMIT_S.items() if not mark or item.get_closest_marker(mark))
                item.add_marker(pytest.mark.timeout(limit))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        if not self.expected:
            self.expected = self.state()
            self.cost()  # of imports and collection
        if time.monotonic() - self.set_at > SET_S:
            self.set_at = time.monotonic()
            faulthandler.dump_traceback_later(HUNG_S, file=self.stderr, exit=True)
        if absl := sys.modules.get("absl.logging"):  # closes this stream wherever a library configures logging
            absl.get_absl_handler().python_handler.stream = sys.__stderr__  # and leaves those of the system open
        return (yield)

    def pytest_exception_interact(self) -> None:
        self.set_at = -math.inf  # pytest stops the timer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self.state()
        try:
            return (yield)
        finally:
            changed = differences(before, self.state())
            own = {key: value for key, value in changed.items() if self.expected.get(key, ABSENT) != value}
            self.lent[fixturedef] = {key: self.expected.get(key, ABSENT) for key in own}
            self.expected.update(own)

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        self.expected.update(self.lent.pop(fixturedef, {}))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for line in self.left_behind():
                error.add_note(line)
            raise
        finally:
            item.user_properties.append(("cost", self.cost()))
        if lines := self.left_behind():
            text = "\n".join([f"{item.nodeid} leaves behind", *lines])
            if any(item.get_closest_marker(mark) for mark in WARNED):
                item.warn(pytest.PytestWarning(text))
            else:
                pytest.fail(text, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and (cost := dict(report.user_properties).get("cost")):
            self.costs.append((*cost, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in summary(self.costs):
            terminalreporter.write_line(line)

    def state(self) -> State:
        """Return the state that a test could change, by kind and name."""
        mask = os.umask(0)
        os.umask(mask)
        found: State = {("working directory", ""): os.getcwd(), ("umask", ""): f"{mask:04o}"}
        found |= {("handler of", number): handler(number) for number in SIGNALS}
        found |= {("variable", n): value for n, value in os.environ.items() if not n.startswith(LIBRARY_VARIABLES)}
        threads = [one for one in threading.enumerate() if one is not threading.main_thread()]
        found |= {("thread", one): one.name for one in threads if not one.name.startswith(KEPT_THREADS)}
        for one in self.processes.living():
            if ("process", one) in self.expected or not self._belongs(one):
                found["process", one] = command(one)
        return found

    def _belongs(self, process: psutil.Process) -> bool:
        """True if an ancestor is expected, or if it is kept for the next use."""
        with suppress(psutil.Error):
            if KEPT_PROCESSES.search(command(process)):
                return True
            return any(self.expected.get(("process", one), ABSENT) is not ABSENT for one in process.parents())
        return True  # it has ended

    def left_behind(self) -> list[str]:
        """One line per difference from the expected state, each of which is undone."""
        until, looks = time.monotonic() + GRACE_S, 0
        while found := differences(self.expected, self.state()):
            if not {"thread", "process"} & {kind for kind, _ in found} or time.monotonic() > until:
                break
            if (looks := looks + 1) == 3:  # most end by themselves
                gc.collect()
            time.sleep(0.05)
        return [self.undo(kind, name, value) for (kind, name), value in found.items()]

    def undo(self, kind: str, name: Any, value: Any) -> str:
        """Undo a difference; returns the line that names it."""
        before = self.expected.get((kind, name), ABSENT)
        if kind == "process":
            kill(name)
            return f"process {name.pid}: {value}"
        if kind == "thread":
            self.expected[kind, name] = value  # a thread cannot be ended from outside
            return f"thread {value}:\n{stack(name)}"
        if kind == "handler of":
            signal.signal(name, before)
            name = signal.Signals(name).name
        elif kind == "working directory":
            os.chdir(before)
        elif kind == "umask":
            os.umask(int(before, 8))
        elif before is ABSENT:
            del os.environ[name]
        else:
            os.environ[name] = before
        return " ".join([kind, *filter(None, [name]), f"{shown(value)}, expected {shown(before)}"])

    def cost(self) -> tuple[float, int, int]:
        """CPU seconds since the last test, and the largest memory of this process and of its children in MiB."""
        spent, last = sum(os.times()[:4]) + self.processes.cpu_s(), self.spent_s
        self.spent_s = spent
        own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return spent - last, own.ru_maxrss >> 10, children.ru_maxrss >> 10


class Processes:
    """Processes that this one has started, directly or not."""

    def __init__(self) -> None:
        self.known: dict[int, psutil.Process | None] = {}  # by number; None belongs to another test process, or to none
        self.seen: tuple[int, ...] = ()
        self.direct: set[int] = set()  # numbers of children
        self.spent: dict[psutil.Process, float] = {}

    def cpu_s(self) -> float:
        """CPU seconds of the living processes, and of those that have ended and are not among the children's."""
        for process in self.living():
            with suppress(psutil.Error):
                if self.known.get(process.ppid()) is None:  # those of its children are among its own
                    self.spent[process] = sum(process.cpu_times()[:4])
        for process in [one for one in self.spent if not is_alive(one)]:
            if process.pid in self.direct:
                del self.spent[process]  # os.times counts it from now on
        return sum(self.spent.values())

    def living(self) -> list[psutil.Process]:
        """Those that have not ended."""
        seen = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt, *children())
        if seen != self.seen:  # a process without a parent comes from a child that has started or ended
            self.seen = seen
            self.direct.update(seen[1:])
            numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
            self.known = {number: self.known[number] if number in self.known else ours(number) for number in numbers}
        return [one for one in self.known.values() if one is not None and is_alive(one)]


def children() -> tuple[int, ...]:
    """Numbers of the child processes."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ()
    while True:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended, and another has its children now
            found = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
            return tuple(sorted(int(word) for text in found for word in text.split()))


def ours(number: int) -> psutil.Process | None:
    """The process if this one has started it."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(number)
        mark = f"{MARK}={os.getpid()}".encode()
        if process.ppid() == os.getpid() or mark in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            return process
    return None


def is_alive(process: psutil.Process) -> bool:
    """True if the process has not ended; one that is not waited for has."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def command(process: psutil.Process) -> str:
    """The command line of a process."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[:500]
    return "ended"


def kill(process: psutil.Process) -> None:
    """Kill a process and its descendants."""
    with suppress(psutil.Error):
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                one.kill()


def differences(before: State, after: State) -> State:
    """Return the changes; ABSENT marks removed items. Threads and processes may end."""
    kept = {key: value for key, value in before.items() if value is not ABSENT}
    removed = {key: ABSENT for key in kept.keys() - after.keys() if key[0] == "variable"}
    return {**{key: value for key, value in after.items() if kept.get(key, ABSENT) != value}, **removed}


def handler(number: int) -> Any:
    """The handler of a signal, without that of the time limit."""
    found = signal.getsignal(number)
    return signal.SIG_DFL if getattr(found, "__module__", "") == "pytest_timeout" else found


def shown(value: Any) -> str:
    """A value of the state in a message."""
    return "none" if value is ABSENT else getattr(value, "name", None) or str(value)


def stack(thread: threading.Thread) -> str:
    """Where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "ended"


def summary(costs: list[tuple[float, int, int, str]]) -> list[str]:
    """The tests with the most CPU seconds, and those after which the largest processes were seen."""
    if not costs:
        return []
    most = ", ".join(f"{cpu_s:.1f} {name}" for cpu_s, _, _, name in sorted(costs, reverse=True)[:NAMED])
    own, child = (max(costs, key=lambda cost: cost[place]) for place in (1, 2))
    return [
        f"{sum(cost[0] for cost in costs):.0f} CPU seconds; most: {most}",
        f"largest test process {own[1]} MiB ({own[3]}), largest child {child[2]} MiB ({child[3]})",
    ]
