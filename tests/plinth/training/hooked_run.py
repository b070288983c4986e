"""Function that a rank runs in the tests of training hooks: a run with a hook of a package below `folder`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from plinth.training.config import RunConfig


def trained(folders: list[str], configs: list[RunConfig]) -> list[dict[str, Any]]:
    """On one rank: the runs, one after the other; the losses of the first steps and the state after the last."""
    sys.path[:0] = folders
    from plinth.training.engine.engine import join, leave
    from plinth.training.loop import train

    rank = join(configs[0])
    torch.set_num_threads(1)
    found = [{"finished": train(config, rank, 0)} for config in configs]
    leave()
    return found


def refused(folders: list[str], config: RunConfig) -> str:
    """On one rank: the error of a run whose hooks are others here."""
    sys.path[:0] = folders
    from plinth.errors import TrainingError
    from plinth.training.engine.engine import join, leave
    from plinth.training.trainer import Trainer

    rank = join(config)
    try:
        Trainer(config, rank)
    except TrainingError as error:
        return str(error)
    finally:
        leave()
    return ""
