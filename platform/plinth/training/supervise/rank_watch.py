"""Watch over the ranks of one attempt. It forwards a stop signal, kills hanging ranks, and reports which ranks
waited.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

import psutil

from plinth.errors import LaunchError
from plinth.launch.parameters import Supervision
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import NODE_SILENT

# Wait for the ranks of one attempt: forward a stop, end hanging ranks, and siblings of failed ranks.

#: Exit status (EX_TEMPFAIL) of a rank or a job stopped by a signal, with the state committed.
EXIT_PREEMPTED = 75

#: Placeholder exit status of a rank whose node sends no heartbeat.
NODE_LOST = 76

#: Exit status of a rank that lost its connection to another rank, which is the one that failed.
EXIT_PARTNER_LOST = 77

#: Exit statuses of named failures, which a retry would not fix.
NAMED = range(2, 9)

POLL_S = 0.1

#: Variable of a rank with the process id of its supervisor.
SUPERVISOR = "PLINTH_SUPERVISOR"

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

#: Seconds after a rank's failure until its siblings, which wait in a collective, are ended.
SIBLING_TIMEOUT_S = 2.0


class Process(Protocol):
    """Process of a rank, on this node or on another node."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class LastChange:
    """Timer of the seconds since a file last changed. The monotonic clock is used, so a change of the wall clock cannot
    look like a hang."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._changed = self._status(), time.monotonic()

    def age_s(self) -> float:
        found, now = self._status(), time.monotonic()
        if found != self._seen:
            self._seen, self._changed = found, now
        return now - self._changed

    def _status(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_size, status.st_mtime_ns


def watch(
    ranks: Sequence[Process],
    timeline: Path,
    supervision: Supervision,
    asked_to_stop: Callable[[], int],
    on_poll: Callable[[], None],
    on_hang: Callable[[], None],
) -> str:
    """Wait until every rank has ended. If hanging ranks were killed, return the reason, otherwise an empty string.

    Args:
        ranks: processes of this attempt; `on_poll` may replace them.
        timeline: file whose changes show the progress of the ranks.
        supervision: time limits.
        asked_to_stop: returns the signal to forward, or 0.
        on_poll: called several times per second.
        on_hang: called before hanging ranks are killed, after each rank got the signal to dump its state.
    """
    deadline = siblings = float("inf")  # when the remaining ranks are killed: after a stop, after a failure
    signalled, pulse = False, LastChange(timeline)
    while any(process.poll() is None for process in ranks):
        on_poll()
        now = time.monotonic()
        if asked_to_stop() and not signalled:
            _send(ranks, signal.SIGTERM)
            signalled, deadline = True, now + supervision.grace_s
        failed = any(process.poll() not in (None, 0, EXIT_PREEMPTED) for process in ranks)  # and not replaced
        siblings = min(siblings, now + SIBLING_TIMEOUT_S) if failed else float("inf")
        if now > min(deadline, siblings):
            _send(ranks, signal.SIGKILL)
        elif pulse.age_s() > supervision.hang_s:
            _send(ranks, signal.SIGUSR1)  # each rank dumps its stacks and current collectives
            time.sleep(1.0)
            on_hang()
            _send(ranks, signal.SIGKILL)
            return f"no event for {supervision.hang_s:g} s: the ranks hang"
        time.sleep(POLL_S)
    return ""


def describe_exit(rank: int, code: int) -> str:
    """Return a sentence about the exit of a rank, for the log."""
    if code == NODE_LOST:
        return f"the node of rank {rank} {NODE_SILENT}"
    if code == EXIT_PARTNER_LOST:
        return f"rank {rank} lost its connection to another rank"
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    return f"rank {rank} ended with status {code}"


def end_process(process: Process) -> None:
    """Kill a rank if it is alive, and wait for its end."""
    _send([process], signal.SIGKILL)
    process.wait()


def _send(ranks: Sequence[Process], number: int) -> None:
    for process in ranks:
        if process.poll() is None:
            process.send_signal(number)


# Hang analysis: who waits for whom, from the ranks' dumps before they are ended.
#
#     hangs/rank-0000.json, .stack …   of each rank that responded
#     hangs/nccl-rank-0 …              of NCCL's own watchdog, if its timeout came first
#     hangs/0001/                      files of one hang, after they were read
#
# Every rank numbers the collectives of a process group. A rank waits in one that others have not reached: those are
# behind, and their stacks show what they do instead.

#: Seconds for the ranks' response; those of other nodes get the request later.
ANSWER_S = 10.0

#: Maximum ranks with their code position on the timeline: those behind or, if there are none, those outside of
#: collectives; the files have all.
SHOWN = 8

_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)$', re.MULTILINE)


def environment(run: RunDirectory) -> dict[str, str]:
    """Return the environment variables that enable a rank's flight recorder. NCCL's watchdog then dumps it into the
    run's directory."""
    prefix = str(run.hangs.absolute() / "nccl-rank-")
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
    }


def prepare(run: RunDirectory) -> None:
    """Remove the dump files that ranks wrote earlier, so that each file found later is new."""
    run.hangs.mkdir(exist_ok=True)
    for path in run.hangs.glob("rank-*"):
        path.unlink()


def collect(run: RunDirectory, ranks: int) -> dict[str, Any]:
    """Wait for the dump files of the ranks, move them into a new folder, and return the fields of event `hang`."""
    until = time.monotonic() + ANSWER_S
    while len(list(run.hangs.glob("rank-*.json"))) < ranks and time.monotonic() < until:
        time.sleep(0.1)
    known = [int(path.name) for path in run.hangs.iterdir() if path.name.isdigit()]
    folder = run.hangs / f"{max(known, default=0) + 1:04d}"
    folder.mkdir()
    for path in [*run.hangs.glob("rank-*"), *run.hangs.glob("nccl-rank-*")]:
        path.rename(folder / path.name)
    dumps = {int(path.stem[5:]): json.loads(path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))}
    fields = examine({rank: one["entries"] for rank, one in dumps.items()}, ranks)
    stacks = {rank: folder / f"rank-{rank:04d}.stack" for rank in fields.pop("elsewhere")[:SHOWN]}
    at = {str(rank): innermost(stack) for rank, stack in stacks.items()}
    return {**fields, "at": at, "files": str(folder.relative_to(run.root))}


def examine(entries: Mapping[int, Sequence[Mapping[str, Any]]], ranks: int) -> dict[str, Any]:
    """Return which ranks wait in which collective, which ranks have not reached it, and which have written no dump.

    Args:
        entries: flight recorder of each rank that has written a dump.
        ranks: number of ranks of the run.
    """
    waiting: dict[tuple[str, str, int, bool], list[int]] = defaultdict(list)
    reached: dict[tuple[str, int], int] = {}  # group and rank -> its last collective
    for rank, own in entries.items():
        outstanding = [one for one in own if not one["retired"] and one["state"] != "completed"]
        if outstanding:
            first = min(outstanding, key=lambda one: int(one["record_id"]))
            group = ":".join(first["process_group"])
            number = int(first["p2p_seq_id" if first["is_p2p"] else "collective_seq_id"])
            waiting[group, str(first["profiling_name"]), number, bool(first["is_p2p"])].append(rank)
        for one in own:
            if not one["is_p2p"]:
                place = ":".join(one["process_group"]), rank
                reached[place] = max(reached.get(place, 0), int(one["collective_seq_id"]))
    behind = sorted(
        {
            rank
            for group, _, number, between_two in waiting
            for (known, rank), last in reached.items()
            if known == group and last < number and not between_two
        }
    )
    return {
        "waiting": [
            {"ranks": spans(own), "collective": name, "number": number, "group": group}
            for (group, name, number, _), own in sorted(waiting.items())
        ],
        "behind": spans(behind),
        "silent": spans([rank for rank in range(ranks) if rank not in entries]),
        "elsewhere": behind or [rank for rank in entries if not any(rank in own for own in waiting.values())],
    }


def innermost(stack: Path) -> str:
    """Return the innermost frame of the main thread in a stack dump, as `file.py:10 function`. faulthandler lists the
    main thread last."""
    try:
        blocks = stack.read_text().split("\n\n")
    except OSError:
        return "unknown"
    found = _FRAME.search(blocks[-1])
    return f"{Path(found[1]).name}:{found[2]} {found[3]}" if found else "unknown"


def spans(ranks: Sequence[int]) -> str:
    """Return a list of ranks as short text, for example `0-6,8`."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


# Response of a rank to a hang: stacks of all threads, and its current collectives.
#
#     SIGUSR1 ──▶ faulthandler, in C: stacks to the job's log, in any state of the rank
#         └─────▶ a thread that waits for the signal: hangs/rank-0003.stack, the flight recorder as hangs/rank-0003.json
#
# A rank hangs in a collective or in the driver, where Python cannot run handlers; such calls release the interpreter's
# lock, so a thread can respond. A rank that holds the lock dumps its stacks only.
#
# PyTorch's flight recorder has the last collectives of each process group, for NCCL and gloo alike.

#: Functions of torch.distributed that return the flight recorder as JSON; a build has those of its backends.
RECORDERS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}


def die_with_supervisor() -> None:
    """Ask the Linux kernel to kill this rank when the supervisor dies, because a rank without a supervisor must not
    write.

    Raises:
        LaunchError: the supervisor did not start this process directly, so the kernel would watch another process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        expected = os.environ.get(SUPERVISOR)
        if expected and os.getppid() != int(expected):
            if not psutil.pid_exists(int(expected)):
                os._exit(1)  # the supervisor died before the call above
            raise LaunchError(
                "this process was not started by the run's supervisor itself",
                found=f"parent process {os.getppid()}",
                expected=f"parent process {expected}",
                remedy="in a script that starts the trainer, use `exec`; Plinth starts the command once per rank",
            )


def install(run: RunDirectory, rank: int) -> None:
    """Install the handler that dumps this rank's state on SIGUSR1, and name the process `rank-N`, because a fork has
    the command line of its parent. Call it on the main thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank-{rank}".encode(), 0, 0, 0)
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.signal(signal.SIGUSR1, _nothing)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)  # written on arrival of a signal, not when Python handles it
    faulthandler.register(signal.SIGUSR1, chain=True)
    arguments = (receive, run.hangs, rank)
    threading.Thread(target=_answer, args=arguments, name="plinth-hang-dump", daemon=True).start()


def dump(folder: Path, rank: int) -> None:
    """Write both dump files of a rank. The file with the collectives comes last."""
    folder.mkdir(exist_ok=True)
    with _new(folder / f"rank-{rank:04d}.stack") as stream:
        faulthandler.dump_traceback(stream, all_threads=True)
    path = folder / f"rank-{rank:04d}.json"
    staged = path.with_suffix(".part")
    with _new(staged) as stream:
        stream.write(json.dumps({"rank": rank, "entries": recorded()}))
    staged.rename(path)


def _new(path: Path) -> IO[str]:
    """Create a new file. A link at this path is removed, so its target is not overwritten."""
    path.unlink(missing_ok=True)
    return path.open("x")


def recorded() -> list[dict[str, Any]]:
    """Return the flight recorder's entries for collectives, by backend and in the order of launch."""
    from torch._C import _distributed_c10d

    found: list[dict[str, Any]] = []
    for name in RECORDERS.values():
        recorder = getattr(_distributed_c10d, name, None)
        if recorder is not None:
            found += json.loads(recorder()).get("entries", [])
    return found


def _answer(receive: int, folder: Path, rank: int) -> None:
    while signals := os.read(receive, 64):
        if signal.SIGUSR1 in signals:
            with contextlib.suppress(OSError):  # the disk itself may hang; the log has the stacks
                dump(folder, rank)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing. Python needs a handler for the signal, because the signal would otherwise not wake the thread."""
