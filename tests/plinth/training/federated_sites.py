"""Sites of a federation for tests: weights that were sent, and whole runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from plinth.storage.workspace import Workspace
from plinth.training.checkpoint.sharded_state import MASTER, WHOLE, Captured, Share, file_name, key_of, write
from plinth.training.config import RunConfig
from plinth.trust.root import Trust
from plinth_extras.federated.coordinator import Coordinator, coordinate
from plinth_extras.federated.exchange import Contribution, Exchange, Federated, now
from plinth_extras.federated.site import Site


def contribution(exchange: Exchange, site: str, weights: Mapping[str, Tensor], **changes: object) -> Contribution:
    """Return the contribution of a site of two ranks: each parameter in two pieces."""
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


#: Where a site may be killed in a round: the call, and whether before or after it.
INSTANTS = {
    "weights to be written": (Site, "_write", False),
    "weights written, not signed": (Exchange, "send", False),
    "sent": (Exchange, "send", True),
    "round chosen, not written down": (Site, "_keep", False),
    "round written down": (Site, "_keep", True),
    "adopted, not saved": (Site, "adopt", True),
}


def train_until_killed(config: RunConfig, instant: str, number: int) -> bool:
    """On one rank: the run, whose leading rank is killed at the so manieth time of an instant."""
    owner, name, after = INSTANTS[instant]
    inner, calls = getattr(owner, name), count(1)

    def struck(*given: Any, **named: Any) -> Any:
        strikes = os.environ["RANK"] == "0" and next(calls) == number
        made = None if strikes and not after else inner(*given, **named)
        if strikes:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    setattr(owner, name, struck)
    return train(config)


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


def coordinate_until_killed(workspace: str, params: Federated, boundary: int) -> int:
    """Make rounds; SIGKILL before this change to the file system (0: none). Returns how many there were."""
    from plinth.storage import boundaries

    exchange = Exchange(params.exchange, Trust.of(Workspace(workspace)))
    counter = boundaries.install(boundary)
    coordinate(Coordinator(exchange, params), 0.0, lambda made: None, poll_s=0.0)
    return counter.passed


def _stop_at(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
