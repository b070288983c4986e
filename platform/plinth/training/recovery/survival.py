"""Training of a rank that outlives the loss of other ranks.

    join ─▶ restore ─▶ steps ── a collective fails, and the supervisor has named a loss ──▶ leave the groups ─▶ join …

This process, its loader and its compiled code stay. Model, engine and process groups are built again, by the same code
as at the start, because DeepSpeed's optimizers keep groups and hooks that cannot be exchanged.
"""

from __future__ import annotations

import gc
import os
from functools import cache, partial

from plinth.training import wire
from plinth.training.config import RunConfig
from plinth.training.data import batches_of
from plinth.training.engine import ranks
from plinth.training.engine.ranks import Rank
from plinth.training.loop import Interrupt, TrainingRun
from plinth.training.recovery.agent import Agent
from plinth.training.recovery.copies import Copier


def train(config: RunConfig, rank: Rank, agent: Agent) -> bool:
    """Train like `loop.train`, but form the process groups here, again after each loss of a rank.

    Raises:
        RuntimeError: a collective failed, and the supervisor has not named a lost rank.
        PlinthError: for the same reasons as in `loop.train`.
    """
    interrupt, opened = Interrupt(), cache(partial(agent.sockets.apart, partial(batches_of, config, rank.index)))
    while True:
        order = agent.next()
        run: TrainingRun | None = None
        try:
            ranks.seed(config.seed + rank.index)  # as at the start of the process, if nothing can be restored
            agent.sockets.begin()
            os.environ.update(order.environment())
            if not rank.leads:
                wire.wait_until_open(order.address, order.port, agent.must_leave)
            ranks.connect(config, rank)
            run = TrainingRun(config, rank, interrupt, opened, follows=order.epoch > 0)
            agent.sockets.end()
            run.copier = Copier(run.trainer.engine, order, agent.secret)
            done = run.resume(order.attempt)
            agent.restored(order, done, run.copier.restored)
            return run.finish(done)
        except RuntimeError as error:
            agent.require_interrupted(error)
        if run is not None:
            run.interrupted()
        del run
        gc.collect()  # engine and groups refer to each other
        ranks.disconnect()
