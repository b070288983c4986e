"""First save of ranks that continue after a loss."""

from __future__ import annotations

from plinth.training.config import RunConfig


def save(config: RunConfig) -> bool:
    """On one rank: save once. Return True if this rank's writer had its lock before the first collective of the
    save."""
    from plinth.training import loop
    from plinth.training.checkpoint import writer
    from plinth.training.engine import engine

    rank, alive = engine.join(config), list[bool]()
    run = loop.TrainingRun(config, rank, follows=True)
    agree = run.saver._on_any_rank

    def agreed(value: bool) -> bool:
        alive.append(writer.is_alive(config.directory, rank.index))
        return agree(value)

    run.saver._on_any_rank = agreed  # type: ignore[method-assign]
    run.run(run.resume(1))
    run.saver.drain()
    run.saver.close()
    run.reporter.close()
    engine.leave()
    return alive[0]
