"""Notifications of packages when the orchestrator starts, publishes or fails to publish an asset.

    stage ── announced ──▶ a bounded queue and a thread per enabled listener

Listeners send updates to other systems, such as collectors of traces or lineage. A slow or absent system delays neither
an asset nor another listener: updates wait in the listener's queue, a full queue drops them, and `finish` waits a few
seconds for the rest. It returns one line per listener that missed updates. Without an enabled listener there is neither
a queue nor a thread.

Does not belong here: the log of publications in the workspace (`workspace_files`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from plinth.compute.context import Context, StepCost
from plinth.errors import PlinthError
from plinth.extensions import Catalogue
from plinth.records import Manifest

#: Number of updates that wait at most for a listener.
QUEUE: Final = 1000
#: Seconds that `finish` waits for the remaining updates.
FINISH_S: Final = 3.0


@dataclass
class AssetUpdate:
    """Start, publication or failure of an asset in one run of the orchestrator.

    Args:
        asset: asset key.
        workspace: URI of the workspace, which is the name space of its assets.
        code_version: identity of the stage's code and parameters.
        schema: Arrow schema of the parts, if they are tables.
        recipe: name of the recipe; empty if it is unknown.
        run: id of the orchestrator's run; empty if there is none.
        began, at: Unix seconds of the start, and of this update.
        inputs: manifests of the inputs; empty before they are read.
        manifest: the manifest, once it is made; it is published only if `state` is `published`.
        reused: True if the manifest was up to date.
        steps: cost of the tasks by step; times: Unix seconds of the begin and end of a step.
        error: reason of a failure.
    """

    asset: str
    workspace: str
    code_version: str
    schema: Any = None
    recipe: str = ""
    run: str = ""
    began: float = 0.0
    at: float = 0.0
    state: Literal["started", "published", "failed"] = "started"
    inputs: Mapping[str, Manifest] = field(default_factory=dict)
    manifest: Manifest | None = None
    reused: bool = False
    steps: Mapping[str, StepCost] = field(default_factory=dict)
    times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class AssetListener:
    """Member of the entry point group `plinth.asset_listeners`.

    Args:
        name: name of the entry point.
        enabled: function that returns True if the environment configures the listener.
        notify: function that sends an update, in a separate thread; an exception counts as a missed update.
    """

    name: str
    enabled: Callable[[], bool]
    notify: Callable[[AssetUpdate], None]


LISTENERS = Catalogue("plinth.asset_listeners", "listener of assets", AssetListener, {})


class Deliveries:
    """Queue of updates for one listener, and the thread that passes them on."""

    def __init__(self, listener: AssetListener) -> None:
        self._listener, self._queue = listener, queue.Queue[AssetUpdate | None](QUEUE)
        self._accepted, self._passed_on, self._over = 0, 0, False  # each counter has one writer
        self._dropped, self._failed, self._reason = 0, 0, ""
        name = f"plinth-asset-listener-{listener.name}"
        self._thread = threading.Thread(target=self._deliver, name=name, daemon=True)
        self._thread.start()

    def put(self, update: AssetUpdate) -> None:
        """Queue an update. It is dropped if the queue is full."""
        try:
            self._queue.put_nowait(update)
            self._accepted += 1
        except queue.Full:
            self._dropped += 1

    def finish(self, until: float) -> str:
        """Wait for the remaining updates; return a line if the listener missed updates, or an empty string.

        Args:
            until: time of `time.monotonic` at which the wait ends.
        """
        begun = time.monotonic()
        with suppress(queue.Full):
            self._queue.put(None, timeout=max(0.0, until - begun))
        self._thread.join(max(0.0, until - time.monotonic()))
        self._over = True
        waiting = self._accepted - self._passed_on
        missed = self._dropped + self._failed + waiting
        late = f"more than {QUEUE} updates waited" if self._dropped else f"no answer within {until - begun:.3g} s"
        return f"{self._listener.name} missed {missed} updates of assets: {self._reason or late}" if missed else ""

    def _deliver(self) -> None:
        while not self._over and (update := self._queue.get()) is not None:
            try:
                self._listener.notify(update)
            except Exception as error:  # of any client library
                self._failed += 1
                self._reason = self._reason or f"{type(error).__name__}: {error}"
            self._passed_on += 1


#: Deliveries of this process by listener, from the first update until `finish`.
_current: dict[str, Deliveries] = {}


@contextmanager
def announced(ctx: Context, update: AssetUpdate) -> Iterator[AssetUpdate]:
    """Notify the listeners of the start of an asset, and then of its publication or failure.

    The caller fills in `inputs` and `manifest` of the yielded update once they are known. Arms of experiments and
    processes that share a run's tasks are left out, as in the log of publications.
    """
    if ctx.share is not None or ctx.workspace.experiment or not (listeners := _enabled()):
        yield update
        return
    update.recipe, update.run, update.began = ctx.recipe, ctx.run, time.time()
    _put(listeners, replace(update, at=update.began))
    try:
        yield update
    except BaseException as error:
        update.error = str(error) or type(error).__name__
        raise
    finally:
        state: Literal["published", "failed"] = "failed" if update.error else "published"
        steps, times = dict(ctx.costs), dict(ctx.times)
        _put(listeners, replace(update, at=time.time(), state=state, steps=steps, times=times))


def finish() -> list[str]:
    """Wait `FINISH_S` for updates that were not sent yet, and return a line for each listener that missed some."""
    deliveries, until = sorted(_current.items()), time.monotonic() + FINISH_S
    _current.clear()
    return [line for _, one in deliveries if (line := one.finish(until))]


def _put(listeners: tuple[AssetListener, ...], update: AssetUpdate) -> None:
    for listener in listeners:
        if listener.name not in _current:
            _current[listener.name] = Deliveries(listener)
        _current[listener.name].put(update)


def _enabled() -> tuple[AssetListener, ...]:
    """Return the listeners that the environment configures. `plinth doctor` reports those that cannot be imported."""
    found = list[AssetListener]()
    for name in LISTENERS:
        with suppress(PlinthError):
            found += [LISTENERS[name]] if LISTENERS[name].enabled() else []
    return tuple(found)
