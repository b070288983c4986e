"""A run of which one rank hears that its save has failed."""

from __future__ import annotations

from plinth.training.config import RunConfig


def train(config: RunConfig, failing: int, at: int) -> list[str]:
    """On one rank: train; rank `failing` hears after step `at` that its last save was lost. The modes of its saves."""
    from plinth.training import loop
    from plinth.training.engine import engine

    rank = engine.join(config)
    run, modes, polls = loop.TrainingRun(config, rank), list[str](), 0
    save = run.saver.save

    def poll() -> None:
        nonlocal polls
        polls += 1
        run.saver.failed = run.saver.failed or (polls == at and rank.index == failing)

    def saving(step: int, monitor: dict[str, object]) -> None:
        modes.append(f"{step} {'again' if run.saver.failed else 'as planned'}")
        save(step, monitor)

    run.saver.poll, run.saver.save = poll, saving  # type: ignore[method-assign]
    done = run.resume(1)
    while done < config.total_steps:
        done = run.run(done)
    run.saver.drain()
    run.saver.close()
    run.reporter.close()
    engine.leave()
    return modes
