"""Traces of chosen steps by `torch.profiler`: Chrome's trace format, which Perfetto opens (ui.perfetto.dev).

Every rank of the run knows the request; those that it names record, from before they launch its first step until the
device has finished its last. Recording is not free, and the end of it waits for the device and writes the file: that
time is besides the steps (`profile`), which are otherwise what they would have been.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from plinth.training.config import RunConfig
from plinth.training.telemetry import profile_request
from plinth.training.telemetry.profile_request import ProfileRequest

#: Seconds between two looks for a request.
LOOK_S = 1.0


class StepProfiler:
    """The traces of one rank."""

    def __init__(self, config: RunConfig, rank: Any) -> None:
        self._config, self._rank = config, rank
        self._known = self._newest = 0
        self._looked = 0.0
        self._waiting: list[ProfileRequest] = []
        self._active: tuple[ProfileRequest, int, Any] | None = None
        self._missed: list[ProfileRequest] = []
        self._add(0)

    def asked(self) -> int:
        """On the leading rank: the number of the newest request that this process has seen on the disk."""
        if self._rank.leads and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._newest = profile_request.latest(self._config.directory)
        return self._newest if self._rank.leads else 0

    def learn(self, number: int) -> None:
        """On every rank, with the numbers of a step: the newest request that the leading rank has seen."""
        for each in range(self._known + 1, number + 1):
            self._add(each)
        self._known = max(self._known, number)

    @property
    def waits(self) -> bool:
        """Whether steps are to be traced that have not begun."""
        return bool(self._waiting)

    def before(self, step: int) -> None:
        """Begin to record before launching a step, if it is asked for."""
        for request in list(self._waiting):
            if request.last < step:
                self._waiting.remove(request)
                self._missed.append(request)
            elif request.first <= step and self._active is None:
                self._waiting.remove(request)
                self._active = request, step, self._record(request)

    def span(self, step: int) -> AbstractContextManager[Any]:
        """Names what a step launches in the trace."""
        if self._active is None or self._active[2] is None:
            return nullcontext()
        from torch.profiler import record_function

        return record_function(f"step {step}")

    def ends(self, step: int) -> bool:
        """Whether recording ends with this step."""
        return self._active is not None and self._active[0].last == step

    def finish(self) -> dict[str, Any]:
        """End recording and write this rank's trace; the fields of an event."""
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
        """Requests whose steps were all taken before the ranks knew of them, once: fields of events. What an earlier
        attempt has traced is not missed."""
        lost = [one for one in self._missed if not one.trace(self._config.directory, one.ranks[0]).exists()]
        self._missed = []
        return [{"number": one.number, "first": one.first, "last": one.last, "files": []} for one in lost]

    def forget(self) -> None:
        """The ranks go back to an earlier step: what is being recorded is thrown away."""
        if self._active is not None and self._active[2] is not None:
            self._active[2].stop()
        self._active = None

    def _add(self, number: int) -> None:
        request = profile_request.load(self._config, number)
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
