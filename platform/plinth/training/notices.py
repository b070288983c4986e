"""Notices before a run is submitted: text that it leaves out, earlier runs that it does not continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.training import config as configuration
from plinth.training.config import RunConfig


def notices(ctx: Context, config: RunConfig) -> list[str]:
    """A sentence for each, from the configuration of a run and the runs of its workspace."""
    return [*_unused(config), *_not_continued(ctx, config)]


def _unused(config: RunConfig) -> Iterator[str]:
    if (rest := config.sequences - config.steps.used) > 0:
        yield (
            f"{rest:,} of {config.sequences:,} sequences are not trained on: they do not fill a step of "
            f"{config.steps.take(config.total_steps - 1)[1]:,}"
        )


def _not_continued(ctx: Context, config: RunConfig) -> Iterator[str]:
    """Only before the first job of a run. Its key depends on its data: more text or a longer schedule is a new run."""
    if config.directory.events.exists():
        return
    earlier = []
    for path in sorted(ctx.workspace.runs.glob(f"{config.recipe}-*/config.json")):
        with suppress(PlinthError):
            other = configuration.load(path)
            if other.recipe == config.recipe and other.directory.events.exists():
                earlier.append(f"{other.run_id} ({other.total_steps:,} steps)")
    if earlier:
        yield (
            f"run {config.run_id} starts from new weights and continues none of {', '.join(earlier)}; "
            "`training.changes` amends a run, `training.initial` begins from its weights"
        )
