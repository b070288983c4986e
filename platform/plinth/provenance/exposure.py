"""A curated document's tokens, and from there the training steps and checkpoints that saw it.

Steps are counted from 1, as on the timeline of a run. The documents that a run saw follow from its manifests; the
steps that it took are on its timeline.
"""

from __future__ import annotations

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
        | {"start": span.start, "tokens": span.tokens, "shards": _pieces(reader, span.start, span.start + span.tokens)}
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
    sightings = steps_of_document(ctx, mixture, shards, bucket, id_, config.steps)
    reached = _reached(config)
    steps = sorted({sighting.step + 1 for sighting in sightings if sighting.step + 1 <= reached})
    if not steps:
        return None
    return {
        "run": config.run_id,
        "steps": steps[:MAX_STEPS],
        "times_seen": sum(sighting.step + 1 <= reached for sighting in sightings),
        "checkpoints": [step for step in _checkpoints(ctx, config) if step >= steps[0]],
    }


def _reached(config: RunConfig) -> int:
    """The last step on the run's timeline."""
    return max(
        (int(event["step"]) for event in read_events(config.directory.events) if event["event"] == "step"), default=0
    )


def _checkpoints(ctx: Context, config: RunConfig) -> list[int]:
    """Steps of the checkpoints that are committed now, and of the published one."""
    steps = set(checkpoint.committed(config.directory))
    ref = ctx.refs.ref("checkpoint")
    if ref is not None:
        stats = ctx.refs.load(ref.digest).stats
        steps |= {int(stats["step"])} if stats.get("run_id") == config.run_id else set()
    return sorted(steps)


def _pieces(reader: ShardReader, start: int, stop: int) -> list[dict[str, Any]]:
    """The shards that hold a span of the stream: name, position in the shard, tokens there."""
    pieces = []
    for part in reader.shards:
        first = int(part.stats["start"])
        last = first + int(part.stats["tokens"])
        if start < last and stop > first:
            begin, end = max(start, first), min(stop, last)
            pieces.append({"shard": part.name, "position": begin - first, "tokens": end - begin})
    return pieces
