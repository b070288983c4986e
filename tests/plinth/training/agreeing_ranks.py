"""Ranks that select a checkpoint together."""

from __future__ import annotations

from plinth.training.config import RunConfig


def selected(config: RunConfig) -> int | str | None:
    """On one rank: the step that all agree on, or the error that all got."""
    from plinth.errors import PlinthError
    from plinth.training.checkpoint.resume import SharedVerification
    from plinth.training.engine import engine as engines
    from plinth.training.telemetry.timeline import Timeline

    rank = engines.join(config)
    found: list[int | str | None] = []
    try:
        found.append(SharedVerification(config, rank).select(Timeline(config.directory.events))[0])
    except PlinthError as error:
        found.append(error.what)
    engines.leave()
    return found[0]
