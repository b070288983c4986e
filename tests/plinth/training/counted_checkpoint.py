"""Cost of save, verification and restore for each rank, as counts: bytes staged, written, hashed, copied, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import synthetic

from plinth.training.config import RunConfig


def saved(configs: dict[str, RunConfig], others: dict[str, RunConfig]) -> tuple[dict[str, dict[str, int]], ...]:
    """On one rank, for each configuration: train a step, save it, and count; then take up what others have saved."""
    from plinth.training.checkpoint import checkpoint, snapshot
    from plinth.training.checkpoint.digest_tree import manifest_in
    from plinth.training.checkpoint.saving import Saver
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.telemetry.timeline import Timeline

    rank, found = engines.join(next(iter(configs.values()))), {}
    for kind, config in configs.items():
        engine = open_engine(config, rank)
        engine.train_step(synthetic.batch_at(config, 1, engine.topology.place.data), 1e-2)
        _, layout = snapshot.plan(engine, 1, {}, "sync")
        saver = Saver(engine, Timeline(config.directory.events))
        saver.save(1, {})
        saver.drain()
        saver.close()
        root = checkpoint.read_root(config.directory, 1)
        files = manifest_in(checkpoint.path(config.directory, 1), root.ranks[rank.index], "it").files
        model = sum(file.bytes for file in files if file.path.startswith("model/"))
        state = sum(file.bytes for file in files if file.path.startswith("engine/"))
        found[kind] = {"staged": layout.bytes, "model": model, "state": state} | restored(config, engine)
        assert snapshot.digests(engine) == snapshot.recorded_digests(config.directory, 1)
        engine.deepspeed.destroy()
    moved = {}
    for kind, config in others.items():
        engine = open_engine(config, rank)
        moved[kind] = restored(config, engine)
        engine.deepspeed.destroy()
    engines.leave()
    return found, moved


def restored(config: RunConfig, engine: Any) -> dict[str, int]:
    """Verify together, then load: bytes hashed and copied, files opened."""
    from plinth.training.checkpoint import digest_tree, sharded_state, snapshot
    from plinth.training.checkpoint.resume import SharedVerification

    counts = {"hashed": 0, "opened": 0, "copied": 0, "pieces": 0}
    hashed, opened, copied = digest_tree._hash, sharded_state.safe_open, sharded_state.ShardedState._copy

    def count_hashed(path: Path, *rest: Any) -> tuple[int, str]:
        answer = hashed(path, *rest)
        counts["hashed"] += answer[0]
        return answer

    def count_opened(*rest: Any, **named: Any) -> Any:
        counts["opened"] += 1
        return opened(*rest, **named)

    def count_copied(pieces: Any, target: Any, *rest: Any) -> None:
        counts["copied"] += target.numel() * target.element_size()
        copied(pieces, target, *rest)

    digest_tree._hash, sharded_state.safe_open = count_hashed, count_opened
    sharded_state.ShardedState._copy = count_copied  # type: ignore[method-assign]
    try:
        SharedVerification(config, engine.rank).verify(1)
        snapshot.load(engine, 1)
    finally:
        digest_tree._hash, sharded_state.safe_open = hashed, opened
        sharded_state.ShardedState._copy = copied  # type: ignore[method-assign]
    return counts
