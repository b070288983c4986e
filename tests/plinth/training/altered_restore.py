"""Ranks that restore a checkpoint of which a byte of one rank changes after verification."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import synthetic

from plinth.training.config import RunConfig


def altered(configs: list[RunConfig]) -> list[dict[str, str]]:
    """On one rank, for each configuration: what refuses each alteration, "" where nothing does."""
    from plinth.errors import CheckpointError
    from plinth.training.checkpoint import checkpoint, snapshot, universal
    from plinth.training.checkpoint.saving import Saver
    from plinth.training.checkpoint.sharded_state import file_name
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.telemetry.timeline import Timeline

    rank, found = engines.join(configs[0]), []
    for config in configs:
        engine = open_engine(config, rank)
        engine.train_step(synthetic.batch_at(config, 1, rank.index), 1e-2)
        saver = Saver(engine, Timeline(config.directory.events))
        saver.save(1, {})
        saver.drain()
        saver.close()
        refresh, preadv = universal.refresh_weights, os.preadv
        file = checkpoint.path(config.directory, 1) / "engine" / file_name(rank.index)

        @contextmanager
        def flipped(file: Any = file) -> Any:
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            yield
            file.write_bytes(data)

        def flipping(fd: int, to: list[Any], at: int, preadv: Callable[..., int] = preadv) -> int:
            size = preadv(fd, to, at)
            to[0][0] ^= 1
            return size

        def change_master(outer: Any, refresh: Callable[..., None] = refresh, engine: Any = engine) -> None:
            next(universal.shares(engine)).state["master"][0] += 1.0
            refresh(outer)

        def change_weight(outer: Any, refresh: Callable[..., None] = refresh, engine: Any = engine) -> None:
            refresh(outer)
            for parameter in engine.module.parameters():
                getattr(parameter, "ds_tensor", parameter).data.view(-1)[0] += 1.0

        alterations: dict[str, tuple[int, Any]] = {  # the rank that holds it
            "nothing": (-1, None),
            "file": (1, flipped),
            "transit": (1, lambda: patch.object(os, "preadv", flipping)),
            "master": (1, lambda: patch.object(universal, "refresh_weights", change_master)),
            "weight": (0, lambda: patch.object(universal, "refresh_weights", change_weight)),  # who hashes them
        }
        answers = {}
        for name, (of, alter) in alterations.items():
            with ExitStack() as stack:
                if rank.index == of:
                    stack.enter_context(alter())
                try:
                    snapshot.load(engine, 1)
                    answers[name] = ""
                except CheckpointError as error:
                    answers[name] = error.what.split()[0]
        found.append(answers)
        engine.deepspeed.destroy()
    engines.leave()
    return found
