"""Timeline of a run, `events.jsonl`.

One JSON object per line: `seq` (rises by one over all writers and restarts), `time` (Unix seconds),
`event`, and the event's own fields:

    submitted    a job is handed to its launcher (launcher); until `job_started` it waits in a queue
    job_started  the job's supervisor runs, and the ranks are allocated (ranks, nodes)
    hosts_checked   every node was checked before its ranks start (hosts: node, host, outcome by check; seconds)
    node_excluded   a node failed its checks and is excluded from the run (node, host, checks: check, evidence)
    run_started  the ranks are up (attempt, ranks, device, precision; verified_s: seconds to verify the checkpoint that
                 is loaded next, or to restore the state from memory)
    resumed      the run resumed from a committed checkpoint (step, attempt), or from copies in memory (source, seconds;
                 sha256 of the restored state of all ranks)
    reshaped     the run resumed in another layout: ranks, micro batch or parallel block differ (step, from, to); later
                 steps use the same data and state, but their numbers are equal only up to rounding
    step         loss, grad_norm, lr, tokens, tokens_per_s, step_s, its `parts` and the work `besides` it, in seconds
                 (step_clock.py), data_wait_s of the host, host_memory_bytes, device_memory (devices.py); `redone` after
                 a resume or a rollback, `vetoed` if the guard skipped its update, the `slowest` rank and
                 its score if ranks were compared
    stragglers   the set of stragglers changed (step, ranks: rank, node, host,
                 score, own_s, parts; fastest_s, median_s, over_steps; communication.py)
    skipped      a rollback skipped a step: the run does not train on its batch (step, rule, window)
    intervention the guard acts (step, rule, value, threshold, action, window, number, factor, layer, reason)
    rolled_back  a checkpoint before the window was loaded (step, undone, number)
    averaged     a federated site continues from common weights (step, round, sites, missing, refused, common, left_out)
    privacy      privacy budget that a private run has spent after a step (step, unit, epsilon, delta)
    documents    documents in the window of an intervention (number, action, rule, window, sources, buckets, documents)
    amended      batch size or row length after `step` was changed (before, batches, total_steps, reason)
    checkpoint   a checkpoint was committed (step, bytes, seconds, stall_s, wait_s, mode)
    save_failed  a writer failed or died; nothing was committed (step, kind, what, found, expected, remedy)
    copy_failed  a copy of a rank's state did not reach a node's memory, or could not be restored from it (step, rank,
                 reason)
    retired      checkpoints were deleted (steps, reason)
    uploaded, upload_failed, downloaded   transfer of a checkpoint to or from a bucket (step, bytes, seconds; tries,
                 reason, retry_s; source)
    vanished     the last supervisor was killed, and its job lost work (from_step, lost_steps, lost_s)
    refused      a checkpoint was rejected: it differs from its record, or was trained on a window that was later
                 skipped (step, reason)
    withdrawn    a rejected checkpoint was withdrawn from the bucket (step)
    restart      the supervisor restarts the ranks after a pause, or only lost ranks (attempt, reason, lost_steps,
                 lost_s, backoff_s)
    lost         the supervisor does not restart the ranks: a node is lost, not all ranks stopped in time after a stop
                 request, or all restarts are used (reason, from_step, lost_steps, lost_s)
    signal       a request to stop was received (signal, step)
    rank_failed  a rank reported a named failure (rank, attempt, kind, what, found, expected, remedy)
    hang         ranks hang and are killed (waiting: ranks, collective, number, group; behind, silent, at, files;
                 rank_watch.py)
    profiled     traces of steps were written, or missed, without files (step, number, first, last, files, seconds)
    device_error a GPU's XID, an uncorrected ECC error, or corruption (kind, xid, node, host, gpu, uuid; devices.py;
                 step, rank; corruption/)
    evaluated    slices and probes of the model at a position in tokens (step, tokens, slices: bits per byte, probes,
                 seconds, not_finite); see validation/, stopping.py
    stopped_by_rule   the stopping rules ended the run (step, reasons, signals: every rule's state)
    allowance    a part of the allowance of the run's jobs is spent (share, rank_s, granted_rank_s,
                 price_per_rank_hour)
    allowance_spent   the job stops before the allowance is exceeded (the same fields)
    forecast_missed   the mean loss of a segment is outside the band of the launch contract (tokens, low, high,
                 loss; null without a finite one)
    upgraded, upgrade_refused   new code repeated the run's last steps, and continues the run or not (the comparison;
                 upgrade/record.py)
    audited      evidence of resume was written (bit_exact, compared_steps; delta: largest difference of a loss,
                 relative)
    replay_checked  the replay of a sampled step was equal (step, samples, seconds; corruption/)
    replayed     sampled steps of an external trainer were replayed (steps, difference, shuffled, chance, fault;
                 forensics/order_proof.py)
    finished, failed, stopped   how the job ended

Rank 0 and the supervisor write. Every append takes a file lock, removes an incomplete last line of a
killed writer, and is a single `write`. If steps repeat after a resume, the later line is valid.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth import errors
from plinth.errors import IntegrityError, PlinthError, TrainingError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import named_failures, open_plain, write_bytes

Event = dict[str, Any]

#: Events that end a job in order.
JOB_ENDS = frozenset({"finished", "failed", "stopped"})

_TAIL_BYTES = 1 << 16


class Timeline:
    """Writer that appends events to the timeline of a run. Any number of processes can write at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = -1
        self._seq = 0

    def append(self, event: str, *, durable: bool = False, **fields: Any) -> Event:
        """Write one event. If `durable` is set, wait until the event is on disk.

        Raises:
            DiskFullError, WorkspaceError, StorageError: the operating system could not write the event.
        """
        fd = open_plain(self.path, os.O_RDWR)
        with named_failures(self.path):
            try:
                atomic.lock(fd)
                end = self._find_end(fd)
                record = {"seq": self._seq + 1, "time": round(time.time(), 3), "event": event, **_plain(fields)}
                line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
                _write_whole(fd, line, end)
                if durable:
                    os.fsync(fd)
                self._seq, self._size = self._seq + 1, end + len(line)
            finally:
                os.close(fd)
        return record

    def _find_end(self, fd: int) -> int:
        """Remove an incomplete last line, read the last `seq`, and return the start of the next line."""
        size = os.fstat(fd).st_size
        if size == self._size:
            return size
        window = _TAIL_BYTES
        while True:
            start = max(0, size - window)
            tail = os.pread(fd, size - start, start)
            whole = tail.rfind(b"\n") + 1
            if start == 0 or tail.rfind(b"\n", 0, max(0, whole - 1)) >= 0:
                break
            window *= 2
        end = start + whole
        if end != size:
            os.ftruncate(fd, end)
        lines = tail[:whole].splitlines()
        self._seq = int(json.loads(lines[-1])["seq"]) if lines else 0
        return end


def _write_whole(fd: int, line: bytes, end: int) -> None:
    """Write the whole line or nothing, even if the disk fills during the write."""
    try:
        written = os.pwrite(fd, line, end)
        if written != len(line):
            os.pwrite(fd, line[written:], end + written)
    except OSError:
        os.ftruncate(fd, end)
        raise


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event with infinite values and NaN as text, because JSON lacks them."""
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


def read_events(path: Path, after_seq: int = 0) -> Iterator[Event]:
    """Yield the events with a `seq` above `after_seq`, in order. An incomplete last line is not an event.

    Raises:
        IntegrityError: a line within the file is not an event.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return
            try:
                event: Event = json.loads(line)
                seq = event["seq"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise IntegrityError(
                    f"{path}, line {number} is not an event",
                    found=line[:80],
                    expected="a JSON object with `seq`",
                    remedy="keep a copy of the file, and remove that line",
                ) from error
            if seq > after_seq:
                yield event


def last_event(path: Path) -> Event | None:
    """Return the last event, read from the end of the file, or None if there is no readable event."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().rpartition(b"\n")[0].splitlines()
        found: Event | None = json.loads(lines[-1]) if lines else None
    except (FileNotFoundError, ValueError):
        return None
    return found


def waited_s(step: Mapping[str, Any]) -> float:
    """Return the seconds of a step that were spent waiting for its batch.

    Events of earlier versions have no parts. For these events, return the seconds that the host waited.
    """
    return float(step["parts"].get("data", 0.0) if "parts" in step else step.get("data_wait_s", 0.0))


def smoothed(mean: float | None, loss: float) -> float | None:
    """Return the exponential mean of the loss after a step; half-life about 14 steps. Non-finite losses are ignored."""
    if not math.isfinite(loss):
        return mean
    return loss if mean is None else 0.95 * mean + 0.05 * loss


def saved_s(step: Mapping[str, Any]) -> float:
    """Return the seconds of a step that were spent waiting for a checkpoint's copy. The checkpoint's `stall_s` includes
    them."""
    return float(step.get("parts", {}).get("checkpoint", 0.0))


def host_memory_bytes(step: Mapping[str, Any]) -> int:
    """Return the peak memory of the leading rank's process. Events of earlier versions have it under another name."""
    return int(step["host_memory_bytes"] if "host_memory_bytes" in step else step.get("memory_bytes", 0))


def put_before(path: Path, earlier: bytes) -> None:
    """Write a new file with an earlier timeline from another machine, followed by this machine's events.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the operating system could not write the file.
    """
    whole = earlier[: earlier.rfind(b"\n") + 1]
    seq = int(json.loads(whole.splitlines()[-1])["seq"]) if whole else 0
    ours = ({**event, "seq": seq + number} for number, event in enumerate(read_events(path), 1))
    write_bytes(path, whole + b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in ours))


class TimelineReader:
    """Reader of a growing timeline. Each call of `poll` reads only new lines, or all lines of a replaced file."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._file = path, 0, 0
        self.read_bytes = 0  # until now; a torn last line is read again

    def poll(self) -> list[Event]:
        """Return the complete events written since the last call."""
        try:
            with self.path.open("rb") as stream:
                file = os.fstat(stream.fileno()).st_ino
                if file != self._file:
                    self._file, self._offset = file, 0
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        self.read_bytes += len(data)
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [json.loads(line) for line in data[:whole].splitlines()]


@dataclass
class History:
    """A timeline in memory: one value per step, and all other events."""

    steps: dict[int, Event] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # everything but steps
    redone: int = 0  # step lines that a resume repeated
    diverged: list[int] = field(default_factory=list)  # steps with another loss or gradient when repeated
    skipped: set[int] = field(default_factory=set)  # steps skipped permanently
    undone: list[Event] = field(default_factory=list)  # steps discarded by a rollback
    _rounded: int = 0  # steps up to here had another layout: equal in rounding only

    def add(self, event: Event) -> None:
        """Add the next event of the timeline."""
        if event["event"] == "skipped":
            self.skipped.add(int(event["step"]))
        if event["event"] == "intervention" and event["action"] == "rollback":
            self._take_back(int(event["window"][0]))
        if event["event"] == "reshaped":
            self._rounded = max(self.steps, default=0)
        if event["event"] != "step":
            self.events.append(event)
            return
        step = int(event["step"])
        earlier = self.steps.get(step)
        if earlier is not None:
            self.redone += 1
            exact = ("batch",) if step <= self._rounded else ("loss", "grad_norm", "batch")
            if any(earlier.get(name) != event.get(name) for name in exact):
                self.diverged.append(step)
        self.steps[step] = event

    def _take_back(self, first: int) -> None:
        """Discard the steps from `first` on, because they are trained again from other parameters and may differ."""
        self.undone += [event for step, event in self.steps.items() if step >= first]
        self.steps = {step: event for step, event in self.steps.items() if step < first}
        self.skipped = {step for step in self.skipped if step < first}

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]


def timeline(path: Path) -> History:
    """Return the history of a run. If a step is repeated, its last event is used."""
    found = History()
    for event in read_events(path):
        found.add(event)
    found.steps = dict(sorted(found.steps.items()))
    return found


# Sign of progress for long phases without events.
#
# The supervisor ends ranks whose timeline does not change for long (`rank_watch`). A phase that hashes, reads, gathers
# or writes calls its pulse after each piece of work; a stuck phase stops calling.

#: Minimum seconds between two changes of the file.
EVERY_S = 1.0


class Pulse:
    """Callable that updates the modification time of a timeline, at most once every `EVERY_S` seconds."""

    def __init__(self, timeline: Path) -> None:
        self._timeline, self._last = timeline, float("-inf")

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            with contextlib.suppress(OSError):  # no timeline yet, or a disk that others report
                os.utime(self._timeline)


# Key figures of a run, with one definition each. Index, results page, run page, Dagster and MLflow use these values and
# labels.
#
# Does not belong here: curves over the run (`report.run_metrics`), its rank-seconds (`goodput`), the mean step by part
# (`step_clock`).

#: Number of steps averaged for the final loss: a single step's loss is mostly the noise of its batch.
FINAL_STEPS: Final = 20
#: Label of each figure; its unit follows from the name.
LABELS: Final[Mapping[str, str]] = {
    "final_loss": f"training loss, mean of the last {FINAL_STEPS} steps",
    "median_step_s": "median step time, seconds",
    "median_tokens_per_s": "median tokens per second",
}


class RunFigures(NamedTuple):
    """Main numbers of a live or finished run, None before its first step. Steps that a rollback discarded are
    excluded."""

    final_loss: float | None = None
    median_step_s: float | None = None
    median_tokens_per_s: float | None = None

    def known(self) -> dict[str, float]:
        """Return the numbers that are not None, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def rounded(self) -> dict[str, str]:
        """Return the numbers that are not None as rounded text for comparison, by name."""
        forms = {"final_loss": "{:.3f}", "median_step_s": "{:.3f}", "median_tokens_per_s": "{:,.0f}"}
        return {name: forms[name].format(value) for name, value in self.known().items()}


def of_history(history: History) -> RunFigures:
    """Return the main numbers of the run with this history."""
    steps = list(history.steps.values())
    losses = list(_finite("loss", steps[-FINAL_STEPS:]))
    seconds, speeds = list(_finite("step_s", steps)), list(_finite("tokens_per_s", steps))
    return RunFigures(
        final_loss=statistics.fmean(losses) if losses else None,
        median_step_s=statistics.median(seconds) if seconds else None,
        median_tokens_per_s=statistics.median(speeds) if speeds else None,
    )


def of_events(events: Iterable[Mapping[str, Any]]) -> RunFigures:
    """Return the main numbers of the run with these events, which must be in order."""
    history = History()
    for event in events:
        history.add(Event(event))
    history.steps = dict(sorted(history.steps.items()))
    return of_history(history)


def _finite(name: str, steps: Iterable[Event]) -> Iterator[float]:
    """Yield the finite values of a field of step events. Non-finite values are text in the timeline and are left
    out."""
    values = (step.get(name) for step in steps)
    yield from (float(value) for value in values if isinstance(value, int | float) and math.isfinite(value))


# A rank's named error as data, so the user's process can raise it again.

#: Reason in the timeline when a node was lost.
NODE_SILENT = "sends no heartbeat"


class RankFailure(Frozen):
    """Fields of a `PlinthError`, as stored in `rank_failed` events and in `result.json`."""

    kind: str
    what: str
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: PlinthError) -> RankFailure:
        """Return the record of a `PlinthError`."""
        found, expected = (None if value is None else str(value) for value in (error.found, error.expected))
        return cls(kind=type(error).__name__, what=error.what, found=found, expected=expected, remedy=error.remedy)

    def error(self) -> PlinthError:
        """Return the error in its original class, so that its exit status stays the same."""
        kind = getattr(errors, self.kind, TrainingError)
        raised: PlinthError = kind(self.what, found=self.found, expected=self.expected, remedy=self.remedy)
        return raised
