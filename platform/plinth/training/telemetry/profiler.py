"""Traces of selected steps by `torch.profiler`, in Chrome's trace format, which Perfetto opens (ui.perfetto.dev).

Every rank of the run receives the request. The requested ranks record from the launch of the first step until the
device has finished the last step. The end of a recording waits for the device and writes the file. That time is counted
between steps (`profile`); the steps are otherwise unchanged.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from plinth.errors import MissingError, TrainingError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory

# Request for a trace of selected steps, in the run's directory: `profiles/0001.json`.
#
#     plinth run profile ──▶ request ──▶ leading rank, polls once a second ──▶ with the numbers of a step ──▶ every rank
#     recipe: telemetry.profile_steps ───────────────────────────────────────────────────────────────────▶ every rank
#
# Needs no torch.

_REQUEST = re.compile(r"(\d{4,})\.json")


class ProfileRequest(Frozen):
    """Request to trace a range of steps on some ranks. Request number 0 comes from the recipe."""

    number: int
    first: int
    last: int
    ranks: tuple[int, ...] = (0,)

    def trace(self, run: RunDirectory, rank: int) -> Path:
        """Return the path of a rank's trace file."""
        return run.profiles / f"{self.number:04d}-steps-{self.first}-{self.last}-rank-{rank:04d}.json.gz"


def submit(config: RunConfig, done: int, first: int, last: int, ranks: tuple[int, ...] = (0,)) -> ProfileRequest:
    """Request a trace of steps that a run has not taken yet, with or without live ranks.

    Args:
        done: last step taken (`job.reached`).

    Raises:
        MissingError: the run has no such steps or ranks, or has taken the steps.
    """
    run = config.directory
    _require(config, first, last, ranks)
    if first <= done:
        raise MissingError(
            f"steps {first} to {last} of run {config.run_id} cannot be traced, because they are in the past",
            found=f"{done} of {config.total_steps} steps done",
            expected=f"steps from {done + 1} on",
            remedy="a step can be traced only while it is trained; `plinth run replay RUN STEP` scores the batch of a "
            "step without training"
            + ("" if done < config.total_steps else "; set training.telemetry.profile_steps for the next run"),
        )
    number = latest(run)
    while True:  # another process may request at the same time
        number += 1
        request = ProfileRequest(number=number, first=first, last=last, ranks=ranks)
        run.profiles.mkdir(exist_ok=True)
        try:
            os.close(os.open(run.profiles / f"{number:04d}.asked", os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            continue
        write_bytes(run.profiles / f"{number:04d}.json", request.model_dump_json().encode())
        return request


def latest(run: RunDirectory) -> int:
    """Return the number of the newest trace request, or 0 if there is none."""
    try:
        names = os.listdir(run.profiles)
    except FileNotFoundError:
        return 0
    return max((int(found[1]) for name in names if (found := _REQUEST.fullmatch(name))), default=0)


def load(config: RunConfig, number: int) -> ProfileRequest | None:
    """Return a trace request by its number, or None if there is none.

    Raises:
        TrainingError: the file is not a trace request.
    """
    if number == 0:
        steps = config.telemetry.profile_steps
        return None if steps is None else ProfileRequest(number=0, first=steps[0], last=steps[1])
    path = config.directory.profiles / f"{number:04d}.json"
    try:
        return ProfileRequest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TrainingError(f"{path} is not a trace request", found=error) from error


def _require(config: RunConfig, first: int, last: int, ranks: tuple[int, ...]) -> None:
    if not 1 <= first <= last <= config.total_steps:
        raise MissingError(
            f"run {config.run_id} has no steps {first} to {last}", expected=f"steps from 1 to {config.total_steps}"
        )
    unknown = [rank for rank in ranks if not 0 <= rank < config.ranks]
    if unknown:
        last_rank = config.ranks - 1
        raise MissingError(f"run {config.run_id} has no rank {unknown[0]}", expected=f"ranks from 0 to {last_rank}")


#: Seconds between two checks for a request.
LOOK_S = 1.0


class StepProfiler:
    """Profiler that records the traces of one rank."""

    def __init__(self, config: RunConfig, rank: Any) -> None:
        self._config, self._rank = config, rank
        self._known = self._newest = 0
        self._looked = 0.0
        self._waiting: list[ProfileRequest] = []
        self._active: tuple[ProfileRequest, int, Any] | None = None
        self._missed: list[ProfileRequest] = []
        self._add(0)

    def asked(self) -> int:
        """Return the number of the newest trace request on disk if this is the leading rank, otherwise 0."""
        if self._rank.leads and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._newest = latest(self._config.directory)
        return self._newest if self._rank.leads else 0

    def learn(self, number: int) -> None:
        """Receive the number of the newest trace request that the leading rank has seen. Every rank gets it with the
        numbers of a step."""
        for each in range(self._known + 1, number + 1):
            self._add(each)
        self._known = max(self._known, number)

    @property
    def waits(self) -> bool:
        """True if steps to trace have not started yet."""
        return bool(self._waiting)

    def before(self, step: int) -> None:
        """Start recording before a step is launched, if a request includes the step."""
        for request in list(self._waiting):
            if request.last < step:
                self._waiting.remove(request)
                self._missed.append(request)
            elif request.first <= step and self._active is None:
                self._waiting.remove(request)
                self._active = request, step, self._record(request)

    def span(self, step: int) -> AbstractContextManager[Any]:
        """Return a context that names the launches of a step in the trace."""
        if self._active is None or self._active[2] is None:
            return nullcontext()
        from torch.profiler import record_function

        return record_function(f"step {step}")

    def ends(self, step: int) -> bool:
        """Return True if recording ends with this step."""
        return self._active is not None and self._active[0].last == step

    def finish(self) -> dict[str, Any]:
        """End recording and write this rank's trace. Return the fields of an event."""
        assert self._active is not None
        (request, first, recording), self._active = self._active, None
        begun = time.monotonic()
        if recording is not None:
            path = request.trace(self._config.directory, self._rank.index)
            path.parent.mkdir(exist_ok=True)
            recording.stop()
            recording.export_chrome_trace(str(path))
        root = self._config.directory.root
        return {
            "number": request.number,
            "first": first,
            "last": request.last,
            "files": [str(request.trace(self._config.directory, rank).relative_to(root)) for rank in request.ranks],
            "seconds": round(time.monotonic() - begun, 3),
        }

    def missed(self) -> list[dict[str, Any]]:
        """Return the event fields of trace requests whose steps were all taken before the ranks received the request.
        Each is returned once.

        Steps that an earlier attempt has traced do not count as missed.
        """
        lost = [one for one in self._missed if not one.trace(self._config.directory, one.ranks[0]).exists()]
        self._missed = []
        return [{"number": one.number, "first": one.first, "last": one.last, "files": []} for one in lost]

    def forget(self) -> None:
        """Discard the current recording when the ranks go back to an earlier step."""
        if self._active is not None and self._active[2] is not None:
            self._active[2].stop()
        self._active = None

    def _add(self, number: int) -> None:
        request = load(self._config, number)
        if request is not None:
            self._waiting.append(request)

    def _record(self, request: ProfileRequest) -> Any:
        if self._rank.index not in request.ranks:
            return None
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._rank.device.type == "cuda" else [])]
        recording = profile(activities=kinds, record_shapes=True, acc_events=True)
        recording.start()
        return recording
