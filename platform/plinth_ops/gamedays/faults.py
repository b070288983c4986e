"""Faults inside the processes of a rehearsal, by kind, step and rank.

    plan(folder, RehearsalFault(...), …)     environment of a job with these faults
    open_batches                    the run's batches; faults of a step are injected before its batch
    submission()                    block in which an orchestrator submits a job; injects the faults of the submission

Each fault is injected once; a marker file in the plan's folder records the injection. Kinds:

    kill at write    SIGKILL at write boundary `value` of the rank, counted from the step on (`boundaries`), or before
                     a file is renamed to `place`
    count writes     only count write boundaries; the count is written before step `until` or when the submission ends
    stop             SIGTERM to the supervisor, as from a scheduler; the rank continues after the signal arrived
    fill disk        a file in `place` that leaves `left` bytes free: immediately, or at write boundary `value`
    limit files      file size limit of the rank, `value` bytes (RLIMIT_FSIZE)
    jump             clock jump of `value` seconds in every process of the job
    read timeout     timeout of `value` seconds for requests to an object store
    flip             bit `value` of a weight of the rank, before the forward pass
    kill             SIGKILL to the `target` of the rank (itself, its node, the copies of its node) before call `value`
                     of the function `place`, counted from 0, or after it (`module:name!`); immediately if it names
                     none. Step 0: in force from the start of the process. The rank `SUPERVISOR` is the supervisor
    other code       the processes of the job run code with another digest, which the function `place` makes different
    wait             the rank waits until the marker is removed, while the game day injects a fault from outside

Does not belong here: faults outside the processes of a job (the game days).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, tzinfo
from functools import partial, reduce
from importlib import import_module
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil

from plinth.records import Frozen
from plinth.storage import blob_cache, boundaries
from plinth.training import attempts
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.data import open_batches as real

VARIABLE = "PLINTH_GAMEDAY"
SOURCE = f"{__name__}:open_batches"

#: Rank number that stands for the process that submits the job.
ORCHESTRATOR = -1

#: Rank number that stands for the supervisor.
SUPERVISOR = -2

#: Seconds after which a waiting rank exits.
WAIT_S = 300.0

Kind = Literal[
    "kill at write", "count writes", "stop", "fill disk", "limit files", "jump", "read timeout", "flip", "kill", "wait",
    "other code",
]  # fmt: skip


class RehearsalFault(Frozen):
    """Fault that is injected before the batch of `step` on `rank`.

    Some kinds of fault end before the batch of step `until`.
    """

    kind: Kind
    step: int
    rank: int = 0
    value: float = 0
    left: int = 0
    until: int = 0
    place: str = ""
    target: str = ""


class FaultPlan(Frozen):
    """Faults to inject into a job, and the folder with their marker files."""

    folder: str
    faults: tuple[RehearsalFault, ...]

    def mark(self, fault: RehearsalFault) -> Path:
        """Return the path of a fault's marker file."""
        return Path(self.folder) / f"{fault.kind.replace(' ', '-')}-{fault.step}-{fault.rank}"

    def struck(self, fault: RehearsalFault) -> bool:
        """Return True if the fault was injected."""
        return self.mark(fault).exists()


def plan(folder: Path, *faults: RehearsalFault) -> tuple[FaultPlan, dict[str, str]]:
    """Return a fault plan, and the environment variables with which a job follows the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    made = FaultPlan(folder=str(folder), faults=faults)
    return made, {VARIABLE: made.model_dump_json()}


def planned() -> FaultPlan | None:
    """Return the fault plan of this process, or None if it has no plan."""
    text = os.environ.get(VARIABLE)
    return FaultPlan.model_validate_json(text) if text else None


def arm(rank: int | None) -> None:
    """Install the faults that must be in place before a supervisor (None) or a rank starts."""
    followed = planned()
    for fault in followed.faults if followed else ():
        if fault.kind == "jump" and followed is not None:
            _jumping_clock(followed.mark(fault), fault.value)
        if fault.kind == "read timeout":
            blob_cache.S3_DRIVER["config_kwargs"]["read_timeout"] = fault.value
        if fault.kind == "other code":
            _change_code(fault.place, computes=rank is not None)
        if fault.kind == "kill" and (rank, fault.rank) == (None, SUPERVISOR) and followed is not None:
            _arm(fault, followed.mark(fault))


def open_batches(config: RunConfig, rank: int) -> Batches:
    """Open the batches of a rehearsal and inject its faults. The run's configuration names this function."""
    source, followed = real(config, rank), planned()
    due = [one for one in followed.faults if one.rank == rank] if followed else []
    for fault in due:
        if followed is not None and fault.kind == "kill" and fault.step == 0:
            _arm(fault, followed.mark(fault))

    def stream(first_step: int) -> Iterator[StepBatch]:
        batches = source(first_step)
        for step in range(first_step, config.total_steps + 1):
            for fault in due:
                if followed is not None:
                    _meet(followed, fault, step)
            yield next(batches)

    return stream


@contextmanager
def submission() -> Iterator[None]:
    """Inject the faults of the process that submits a job within the block. At its end, stop counting writes."""
    followed = planned()
    due = [one for one in followed.faults if one.rank == ORCHESTRATOR] if followed else []
    for fault in due:
        if followed is not None:
            _meet(followed, fault, fault.step)
    yield
    for fault in due:
        if followed is not None:
            _end(fault, followed.mark(fault))


def _meet(followed: FaultPlan, fault: RehearsalFault, step: int) -> None:
    """Inject a fault that is due before the batch of a step, or end the fault at step `until`."""
    mark = followed.mark(fault)
    if fault.until and step >= fault.until and mark.exists():
        _end(fault, mark)
    if step != fault.step:
        return
    if fault.kind == "kill" and fault.place:
        _arm(fault, mark)
        return
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    _strike(fault, mark)


def _strike(fault: RehearsalFault, mark: Path) -> None:
    if fault.kind == "kill at write":
        boundaries.install(int(fault.value), name=fault.place)
    elif fault.kind == "count writes":
        _COUNTERS[fault] = boundaries.install(0)
    elif fault.kind == "stop":
        os.kill(os.getppid(), signal.SIGTERM)
        _wait_until(_asked_to_stop)
    elif fault.kind == "fill disk":
        fill = partial(_fill, Path(fault.place), fault.left)
        if fault.value:
            boundaries.install(int(fault.value), fill)
        else:
            fill()
    elif fault.kind == "limit files":
        limit = int(fault.value)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif fault.kind == "flip":
        _flip(int(fault.value))
    elif fault.kind == "kill":
        _kill(fault.target)
    elif fault.kind == "wait":
        _wait_until(lambda: not mark.exists() or _asked_to_stop())


def _arm(fault: RehearsalFault, mark: Path) -> None:
    """Inject a fault once, before or after a call of a function."""
    module, _, path = fault.place.rstrip("!").partition(":")
    *owners, name = path.split(".")
    owner: Any = reduce(getattr, owners, import_module(module))
    whole, calls, number = getattr(owner, name), count(), -1

    def strike() -> None:
        if number != int(fault.value):
            return
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            _strike(fault, mark)

    def struck(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        number = next(calls)
        if not fault.place.endswith("!"):
            strike()
        result = whole(*args, **kwargs)
        strike()
        return result

    setattr(owner, name, struck)


def code_of(place: str) -> str:
    """Return the digest of the library in a job whose code the function `place` changes."""
    return f"planted by {place}"


def _change_code(place: str, *, computes: bool) -> None:
    """Change the digest of the code, and in a rank, which is forked from the supervisor, what it computes."""
    real = attempts.code_digests
    attempts.code_digests = lambda: {**real(), "plinth": code_of(place)}
    if computes:
        module, _, name = place.partition(":")
        getattr(import_module(module), name)()


def _kill(target: str) -> None:
    if target == "keeper":
        for process in psutil.Process(os.getppid()).children():
            if "plinth.training.recovery.keeper" in process.cmdline():
                process.kill()
        return
    if target == "node":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_COUNTERS: dict[RehearsalFault, boundaries.Counter] = {}


def _end(fault: RehearsalFault, mark: Path) -> None:
    if fault.kind == "count writes" and fault in _COUNTERS:
        mark.write_text(str(_COUNTERS.pop(fault).passed))
    elif fault.kind == "limit files":
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _flip(bit: int) -> None:
    """Flip a bit of a weight of this rank in its next step."""
    import torch

    from plinth.training.engine.engine import TrainingEngine

    whole = TrainingEngine.train_step

    def flipped(engine: Any, batch: StepBatch, lr: float) -> Any:
        TrainingEngine.train_step = whole  # type: ignore[method-assign]
        weight = next(one for name, one in engine.module.named_parameters() if "mlp" in name)  # FP32 in rehearsals
        weight.data.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << bit)
        return whole(engine, batch, lr)

    TrainingEngine.train_step = flipped  # type: ignore[method-assign, assignment]


def filler(place: Path) -> Path:
    """Return the path of the file that is written to fill a disk."""
    return place / "filler"


def _fill(place: Path, left_bytes: int) -> None:
    with filler(place).open("wb", buffering=0) as stream:
        while (free := shutil.disk_usage(place).free - left_bytes) > 0:
            stream.write(bytes(min(free, 1 << 20)))


def _wait_until(holds: Any) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > until:
            sys.exit("timeout: the game day did not release this rank")
        time.sleep(0.02)


def _asked_to_stop() -> bool:
    """Return True if the training loop has received a stop signal."""
    interrupt = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(interrupt, "signal", 0))


def _jumping_clock(mark: Path, by_s: float) -> None:
    """Shift this process's clock for events and signatures once the marker file exists."""
    real_time, real_datetime = time.time, datetime
    after = {"s": 0.0}

    def jumped() -> float:
        if not after["s"] and mark.exists():
            after["s"] = by_s
        return after["s"]

    class Jumped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return real_datetime.now(tz) + timedelta(seconds=jumped())

    time.time = lambda: real_time() + jumped()
    for name, module in list(sys.modules.items()):
        if name.startswith("plinth.") and getattr(module, "datetime", None) is real_datetime and name != __name__:
            setattr(module, "datetime", Jumped)  # noqa: B010


# A TCP proxy on loopback that stalls or drops connections to a server.
#
#     with FaultyLine("127.0.0.1:9000", after_bytes=5000, failures=2, stall_s=3.0) as line:
#         …  # connect to `line.port` instead of the server
#
# The first `failures` responses that are longer than `after_bytes` stall there for `stall_s` seconds and then continue;
# if `stall_s` is 0, the connection is dropped. Later responses pass unchanged.


class FaultyLine:
    """Network proxy that injects faults into a server's responses.

    Args:
        endpoint: host and port of the server.
        after_bytes: bytes of a response that arrive before the fault.
        failures: number of responses that stall or are dropped.
        stall_s: seconds of a stall. If 0, the connection is dropped. If infinite, the connection stalls until the proxy
            closes.
    """

    def __init__(self, endpoint: str, after_bytes: int, failures: int, stall_s: float = 0.0) -> None:
        host, _, port = endpoint.partition(":")
        self._server, self._after, self.failures_left, self.struck = (host, int(port)), after_bytes, failures, 0
        self._stall_s, self._closed, self._lock = stall_s, threading.Event(), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the proxy, and drop stalled connections."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # stops the thread that accepts connections
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                passed += len(data)
                if answer and passed > self._after and self._strikes():
                    if not self._stall_s:
                        break
                    if self._closed.wait(None if self._stall_s == float("inf") else self._stall_s):
                        break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _strikes(self) -> bool:
        with self._lock:
            if self.failures_left <= 0:
                return False
            self.failures_left -= 1
            self.struck += 1
            return True
