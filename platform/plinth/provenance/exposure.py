"""A curated document's tokens, and from there the training steps and checkpoints that saw it.

Steps are counted from 1, as on the timeline of a run. The documents that a run saw follow from its manifests; the
steps that it took are on its timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens.order.batch import steps_of_document
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, load
from plinth.training.telemetry.timeline import read_events

MAX_STEPS = 1000


def tokens(ctx: Context, shards: Manifest, id_: str) -> list[dict[str, Any]]:
    """The document's position in its stream, and the shards that hold it, with the position in each."""
    return [
        ({"stream": name} if reader.stream.label else {})
        | {"start": span.start, "tokens": span.tokens, "shards": pieces(reader, span.start, span.start + span.tokens)}
        for name, reader in open_streams(ctx.store, [shards]).items()
        for span in reader.index.find(bytes.fromhex(id_))
    ]


def runs(ctx: Context, bucket: str, id_: str) -> list[dict[str, Any]]:
    """Every run in this workspace that saw the document: steps, and committed checkpoints after the first of them."""
    found = []
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        seen = _seen(ctx, load(path), bucket, id_)
        if seen:
            found.append(seen)
    return found


def _seen(ctx: Context, config: RunConfig, bucket: str, id_: str) -> dict[str, Any] | None:
    try:
        mixture = ctx.refs.load(config.mixture)
        shards = {name: ctx.refs.load(digest) for name, digest in config.shards.items()}
    except MissingError:
        return {"run": config.run_id, "unknown": "the manifests of its data are not in this workspace"}
    if bucket not in shards:
        return None
    sightings = steps_of_document(ctx, mixture, shards, bucket, id_, config.draws)
    trained = trained_steps(config)
    steps = sorted({sighting.step + 1 for sighting in sightings if sighting.step + 1 in trained})
    if not steps:
        return None
    return {
        "run": config.run_id,
        "steps": steps[:MAX_STEPS],
        "times_seen": sum(sighting.step + 1 in trained for sighting in sightings),
        "checkpoints": [step for step in checkpoints(ctx, config) if step >= steps[0]],
    }


@dataclass(frozen=True)
class TrainedSteps:
    """The steps that a run took: up to the last on its timeline, without those that a rollback left out."""

    last: int
    left_out: frozenset[int]

    def __contains__(self, step: int) -> bool:
        return step <= self.last and step not in self.left_out


def trained_steps(config: RunConfig) -> TrainedSteps:
    """The steps on the run's timeline."""
    last, left_out = 0, set[int]()
    for event in read_events(config.directory.events):
        if event["event"] == "step":
            last = max(last, int(event["step"]))
        elif event["event"] == "skipped":
            left_out.add(int(event["step"]))
    return TrainedSteps(last, frozenset(left_out))


def checkpoints(ctx: Context, config: RunConfig) -> list[int]:
    """Steps of the checkpoints that are committed now, and of the published one."""
    steps = set(checkpoint.committed(config.directory))
    published = ctx.refs.published("checkpoint")
    if published is not None and published.stats.get("run_id") == config.run_id:
        steps.add(int(published.stats["step"]))
    return sorted(steps)


def pieces(reader: ShardReader, start: int, stop: int) -> list[dict[str, Any]]:
    """The shards that hold a span of the stream: name, position in the shard, tokens there."""
    pieces = []
    for part in reader.shards:
        first = int(part.stats["start"])
        last = first + int(part.stats["tokens"])
        if start < last and stop > first:
            begin, end = max(start, first), min(stop, last)
            pieces.append({"shard": part.name, "position": begin - first, "tokens": end - begin})
    return pieces
