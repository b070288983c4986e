"""Training runs that read something, known by their configuration: their checkpoints need not be published to exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from plinth.compute.context import Context
from plinth.records import Frozen
from plinth.training.checkpoint.checkpoint import committed
from plinth.training.config import RunConfig, load
from plinth.training.directory import RunDirectory


class AffectedRun(Frozen):
    """A run that read marked data, with the steps of its committed checkpoints that are still on disk."""

    run_id: str
    checkpoints: tuple[int, ...]


def affected_runs(ctx: Context, digests: Collection[str], named: Collection[str] = ()) -> tuple[AffectedRun, ...]:
    """Runs whose mixture, shards, tokenizer, canaries, held-out text or probes are among these digests, and those that
    are named, by name.

    A run that failed before its first commit made nothing and is left out.

    Raises:
        TrainingError: a run's configuration cannot be read.
    """
    found = []
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        config = load(path)
        steps = tuple(committed(RunDirectory(path.parent)))
        if steps and (config.run_id in named or any(digest in digests for digest in read_by(config))):
            found.append(AffectedRun(run_id=config.run_id, checkpoints=steps))
    return tuple(found)


def read_by(config: RunConfig) -> Iterator[str]:
    """Digests that a run's configuration names: its data, its tokenizer, and the models that it starts from."""
    yield from (config.mixture, config.tokenizer, *config.shards.values(), config.heldout, config.probes)
    yield from _texts(config.provenance)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
