"""Protections removed, one by one, in every process of a rehearsal: `PLINTH_REMOVED` names the game day to turn red.

The process that rehearsals are forked from loads this after `loaded`; who plays a game day calls `remove` as well.
`python -m removed_protections NAME SEED FIRST INSTANTS` plays one without its protection and prints the record as JSON.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: Child processes see only variables with known names; without this one, importing this module fails.
VARIABLE = "PLINTH_REMOVED"


def remove() -> None:
    """Take out the protection that the environment names."""
    globals()[f"_{os.environ[VARIABLE].replace('-', '_')}"]()


def _corrupted_checkpoint() -> None:
    from plinth.training.checkpoint import checkpoint

    checkpoint.differing = lambda *_, **__: None  # type: ignore[assignment]


def _partial_write() -> None:
    """A folder counts as soon as it is there, and is written in place."""
    from plinth.training.checkpoint import checkpoint

    def in_place(run: Any, step: int) -> Any:
        folder = checkpoint.path(run, step)
        folder.mkdir(parents=True, exist_ok=True)
        (run.staging / checkpoint.name(step)).parent.mkdir(parents=True, exist_ok=True)
        (run.staging / checkpoint.name(step)).symlink_to(folder)
        return run.staging / checkpoint.name(step)

    checkpoint.stage = in_place
    checkpoint.clean = lambda run: None
    checkpoint.committed = lambda run: sorted(  # type: ignore[assignment]
        int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-????????") if path.is_dir()
    )


def _full_disk() -> None:
    """Remove the wrapper that names errors of the operating system, and the check of free space."""
    from contextlib import nullcontext

    from plinth.training.checkpoint import (
        checkpoint,
        rank_part,  # noqa: F401  writes what a checkpoint holds
    )

    for name, module in list(sys.modules.items()):
        if name.startswith("plinth.") and hasattr(module, "named_failures"):
            module.named_failures = lambda path: nullcontext()  # type: ignore[attr-defined]
    checkpoint._require_space = lambda run: None


def _preemption() -> None:
    from plinth.training import loop

    def deaf(self: Any, number: int, frame: Any) -> None:
        self.heard = number

    loop.Interrupt._remember = deaf  # type: ignore[method-assign]


def _lost_ranks() -> None:
    from plinth.training.parameters.run import Recovery

    Recovery.enabled = property(lambda self: False)  # type: ignore[assignment, method-assign]


def _flipped_bit() -> None:
    from plinth.training.corruption import replays

    replays.StepReplayer.due = lambda self, step: False  # type: ignore[method-assign]


def _upgrade() -> None:
    """All code may take over."""
    from plinth.training.upgrade.record import CodeComparison

    CodeComparison.accepted = property(lambda self: True)  # type: ignore[assignment, method-assign]


def _missed_forecast() -> None:
    from plinth.training.predicted_curve import CurveWatch

    CurveWatch.missed = lambda self, step: []  # type: ignore[method-assign]


def _clock_jump() -> None:
    from plinth.trust.root import Root

    Root.expired = lambda self, at=None: False  # type: ignore[method-assign]


def _storage_stall() -> None:
    """A request is made once, and a reader does not try again what was not fetched ahead."""
    from plinth.errors import PlinthError
    from plinth.storage.blob_cache import RemoteBlobs
    from plinth.tokens.reading import shard_sources

    shard_sources.IntegrityError = PlinthError  # type: ignore[misc, assignment]

    once = RemoteBlobs.__init__

    def impatient(self: Any, *arguments: Any, **named: Any) -> None:
        once(self, *arguments, **{**named, "attempts": 1})

    RemoteBlobs.__init__ = impatient  # type: ignore[method-assign]


def _bad_shard() -> None:
    from plinth.storage import store

    store.require_unchanged = lambda *_, **__: None


def _poisoned_batch() -> None:
    """Judge no step, neither before its update nor after."""
    from plinth.training.guard.rules import Limits
    from plinth.training.guard.state_machine import Guard

    Guard.record = lambda self, seen: []  # type: ignore[method-assign]
    Guard.update_limits = lambda self, step, in_flight=0, rows=0: Limits()  # type: ignore[method-assign]


def _revoked_key() -> None:
    from plinth.trust import dsse

    dsse._revoked = lambda *_: False


def _orchestrator_death() -> None:
    """A job whose handle was not written is not found; Dagster, which is another process, loads this module too."""
    from plinth.launch import local
    from plinth_ops.gamedays import orchestrator_day

    local._without_handle = lambda directory: None
    main = "from plinth_ops.gamedays.orchestrator_day import main; sys.exit(main())"
    started = f"import removed_protections, sys; {main}"
    orchestrator_day.ORCHESTRATED = ("-c", started)


def _bad_release() -> None:
    """A mark freezes nothing."""
    from plinth_registry import taint

    taint.marks_on = lambda *_: ()


def _mlflow_away() -> None:
    from plinth_assets.training import TimelineRelay

    real = TimelineRelay._relay

    def lossy(self: Any, events: Any) -> None:
        try:
            real(self, events)
        except Exception:  # what was not accepted is forgotten
            return

    TimelineRelay._relay = lossy  # type: ignore[method-assign]


def main() -> None:
    """Play a game day without its protection."""
    from plinth_ops.gamedays import warm_job
    from plinth_ops.gamedays.gameday import find
    from plinth_ops.gamedays.play import play

    name, seed, first, instants = sys.argv[1], *map(int, sys.argv[2:5])
    os.environ[VARIABLE] = name
    remove()
    warm_job._SERVER.set_forkserver_preload(["plinth_ops.gamedays.loaded", "removed_protections"])
    record = play(find(name), seed=seed, first=first, instants=instants)
    print(record.model_dump_json())


if __name__ == "__main__":
    main()
else:
    remove()
