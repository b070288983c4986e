"""Sites of a federation for tests: weights that were sent, and whole runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import torch
from torch import Tensor

from plinth.training.checkpoint.sharded_state import MASTER, WHOLE, Captured, Share, file_name, key_of, write
from plinth.training.config import RunConfig
from plinth.training.federated.exchange import Contribution, Exchange, now


def contribution(exchange: Exchange, site: str, weights: Mapping[str, Tensor], **changes: object) -> Contribution:
    """What a site of two ranks sends: each parameter in two pieces."""
    files = []
    for rank in (0, 1):
        tensors, shapes = {}, {}
        for name, values in weights.items():
            start = rank * (values.numel() // 2)
            part = values.reshape(-1)[start:] if rank else values.reshape(-1)[: values.numel() // 2]
            tensors[key_of(Share(name, tuple(values.shape), WHOLE, start, {}), MASTER, start)] = part
            shapes[name] = list(values.shape)
        exchange.store.root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=exchange.store.root) as folder:
            write(Captured(tensors, {"shapes": shapes}), Path(folder), rank)
            files.append(exchange.store.put_file(Path(folder) / file_name(rank)))
    fields = {"site": site, "round": 0, "base": "", "step": 0, "ends": False, "files": tuple(files), "at": now()}
    return Contribution.model_validate({**fields, **changes})


def train(config: RunConfig, stop_at: Path | None = None) -> bool:
    """On one rank: the whole run, as `python -m plinth.training` does it; with a signal once a file is there."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.loop import train as whole

    rank = join(config)
    torch.set_num_threads(1)
    if stop_at is not None:
        Thread(target=_stop_at, args=(stop_at,), daemon=True).start()
    finished = whole(config, rank, 0)
    leave()
    return finished


def audit(config: RunConfig) -> None:
    """On one rank: the proof of resume."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.forensics.audit import replay

    rank = join(config)
    torch.set_num_threads(1)
    replay(config, rank)
    leave()


def _stop_at(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
