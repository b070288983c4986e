"""Probes for tests: a few items, and what ranks do with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import heldout_text
import partly_scored
import synthetic

from plinth.compute.context import Context
from plinth.evaluation.probes.base import ProbeItem
from plinth.records import Manifest
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.validation import probe_plan
from plinth.training.validation.probe_plan import Budget

ANIMALS = ("fox", "dog", "document", "web", "story", "größte")


def items() -> list[ProbeItem]:
    """Two probes: one with wrong answers of several lengths, one without; the last item is longer than a sequence."""
    found = []
    for number, animal in enumerate(ANIMALS):
        others = tuple(f" {one}" for one in ANIMALS if one != animal)[: number % 3 + 1]
        prompt = f"A {animal} or a"
        found.append(ProbeItem(f"a{number}", "animals", "knowledge", "t", prompt, f" {animal}", others, "Of the"))
    for number, lines in enumerate((1, 2, 30)):
        prompt, control = (f"f({x})\n" * lines + "while" for x in ("x", "y"))
        found.append(ProbeItem(f"l{number}", "loops", "code", "t", prompt, " True: f(x)", (), control))
    return found


def fitting() -> list[ProbeItem]:
    """Those that fit a sequence of 32 tokens."""
    return items()[:-1]


def prepared(ctx: Context, looks: int = 6, share: float = 1.0) -> Manifest:
    """Items and tokens of a run of 20,000 tokens in sequences of 32."""
    trained = heldout_text.corpus(ctx)[1]
    return probe_plan.prepare(ctx, Budget(share, 20_000, looks, 32), items(), {}, trained)


def look_all(configs: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """Return on one rank, for each configuration, the bits of every item before the first step and after the second,
    and the results of the steps with evaluations between them and without."""
    import torch

    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.validation.validation import ProbeScorer

    rank, answers = engines.join(next(iter(configs.values()))), {}
    for name, config in configs.items():
        ends, scorer, found = [], ProbeScorer(config), list[Any]()
        for looks in (True, False):
            engines.seed(config.seed + rank.index)
            engine = open_engine(config, rank)
            losses = []
            for step in (0, 1, 2):
                if step:
                    loss, norm = engine.train_step(partly_scored.batch_of(config, step, rank.index), partly_scored.LR)
                    losses.append((float(loss), float(norm)))
                if looks:
                    drawn = torch.get_rng_state()
                    result = scorer.score(engine)
                    assert torch.equal(drawn, torch.get_rng_state())
                    found.append([tuple(one) for one in result.items])
            ends.append((losses, snapshot.digests(engine)))
            engine.deepspeed.destroy()
        answers[name] = {"found": found, "with": ends[0], "without": ends[1]}
    engines.leave()
    return answers


def dying(config: RunConfig, rank: int) -> Batches:
    """The synthetic batches; of a run named for it, the first rank that asks for step 5 is killed, once step 3 is
    committed."""

    def stream(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, config.total_steps + 1):
            mark = Path(config.workspace) / "died"
            if step == 5 and config.run_id.startswith("dies") and not mark.exists():
                mark.touch()
                while 3 not in checkpoint.committed(config.directory):  # another process writes it
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            yield synthetic.batch_at(config, step, rank)

    return stream
