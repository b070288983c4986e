"""Ranks that train on while their state is copied, as late as the copy may be."""

from __future__ import annotations

from threading import Event
from typing import Any

import synthetic

from plinth.training.config import RunConfig


def late(configs: list[RunConfig]) -> list[dict[str, Any]]:
    """On one rank, for each configuration: two steps, a save, and two more steps.

    No copy begins before the update of the next step, or who settles, waits for it. Returns digests of the state at
    the save, at the end, and as the checkpoint tells them, and what the loaded checkpoint gives.
    """
    from plinth.training.checkpoint import snapshot, staging
    from plinth.training.checkpoint.saving import Saver
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.telemetry.timeline import Timeline

    waited = Event()
    copy, wait = staging.StagingLayout.copy, staging.BackgroundCopy.wait

    def copied_late(layout: Any, block: Any) -> None:
        assert waited.wait(120.0)
        copy(layout, block)

    def told(copying: Any) -> None:
        waited.set()
        wait(copying)

    staging.StagingLayout.copy, staging.BackgroundCopy.wait = copied_late, told  # type: ignore[method-assign]
    rank, found = engines.join(configs[0]), []
    for config in configs:
        engine, step = open_engine(config, rank), 0

        def train(engine: Any = engine, config: RunConfig = config) -> None:
            nonlocal step
            step += 1
            engine.train_step(synthetic.batch_at(config, step, rank.index), 1e-2)

        saver = Saver(engine, Timeline(config.directory.events))
        train()
        train()
        waited.clear()
        one: dict[str, Any] = {"saved": snapshot.digests(engine)}
        saver.save(step, {})
        one["free"] = not waited.is_set()
        train()
        one["held"] = waited.is_set()
        train()
        saver.drain()
        saver.close()
        one["told"] = snapshot.recorded_digests(config.directory, 2)
        one["end"] = snapshot.digests(engine)
        snapshot.load(engine, 2)
        one["loaded"] = snapshot.digests(engine)
        found.append(one)
    engines.leave()
    return found
