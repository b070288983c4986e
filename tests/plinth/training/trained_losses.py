"""The losses of a run's steps, without checkpoints: `python trained_losses.py CONFIG`."""

from __future__ import annotations

import json
import os
import sys

from plinth.processes import free_port
from plinth.training import config as configuration
from plinth.training.engine.engine import join, leave
from plinth.training.trainer import Trainer

if __name__ == "__main__":
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    config = configuration.load(sys.argv[1])
    trainer = Trainer(config, join(config))
    stream = trainer.batches(1)
    losses = [trainer.launch(stream, step).read().loss for step in range(1, config.total_steps + 1)]
    leave()
    print(json.dumps(losses))
