"""Probes scored over the live model on all ranks of a run, as `evaluation.engine` scores them over a checkpoint.

    N  targets of a batch

The batches are those of the offline score (`evaluation.engine.batches`), fixed by the items, and are dealt to data
ranks in turn; of every target one rank has the answer, so that adding the ranks' answers changes no bit. Undivided, on
the same device and in the same precision, the bits are those of the offline score of the same weights; tensor, sequence
and pipeline ranks round as their kernels do. Blocks are not compiled here, whatever training does: probes have many
lengths.

Nothing is drawn at random, no gradient is made and no parameter changes.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from plinth.compute.engine import torch_threads
from plinth.errors import TrainingError
from plinth.training.config import RunConfig
from plinth.training.engine.engine import TrainingEngine

if TYPE_CHECKING:
    from plinth.evaluation.probes.scoring import ItemScore


class ProbeResult(NamedTuple):
    """One look.

    Attributes:
        items: the scores of every item; none when the model has diverged.
        probes: by probe the numbers of an event.
        digest: of what was asked.
        not_finite: probes without a finite number.
        seconds: what it took.
    """

    items: list[ItemScore]
    probes: dict[str, dict[str, float | int]]
    digest: str
    not_finite: list[str]
    seconds: float

    def event(self) -> dict[str, object]:
        """The fields of an event, unrounded: they are those of the offline score to the last bit."""
        return {"probes": self.probes, "probe_set": self.digest, "probe_seconds": round(self.seconds, 4)}


class ProbeScorer:
    """Scores the probes of a run; does nothing where the run has none."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._steps: frozenset[int] = frozenset()
        if not config.probes:
            return
        from plinth.evaluation.engine.batches import plan  # with Arrow and tokenizers: only for runs with probes
        from plinth.evaluation.engine.inference import tokens_of_batch
        from plinth.storage.shared_store import open_store
        from plinth.storage.state import Refs
        from plinth.storage.workspace import Workspace
        from plinth.training.validation import probe_plan

        workspace = Workspace(config.workspace)
        found = probe_plan.load(open_store(workspace), Refs(workspace).load(config.probes))
        self.items, self.streams, self.digest = found.items, found.streams, found.digest
        self._steps = frozenset(config.looks[:: -found.every]) if found.items else frozenset()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._batches = plan(self.streams, config.sequence_tokens, tokens_of_batch(device))

    def due(self, step: int) -> bool:
        """Whether to score after this step: at every so many of the looks, the last among them."""
        return step in self._steps

    def score(self, engine: TrainingEngine) -> ProbeResult:
        """Every probe under the engine's parameters; a collective."""
        from plinth.evaluation.engine import inference
        from plinth.evaluation.probes import scoring

        begun = time.monotonic()
        answers = self._answers(engine).cpu().numpy()
        starts = list(accumulate((one.targets for one in self._batches), initial=0))
        own = [answers[a:b] for a, b in pairwise(starts)]
        try:
            bits = inference.collect(self.streams, self._batches, own).bits.tolist()
            items = scoring.scored(self.items, bits)
        except TrainingError:  # the model has diverged, which is the guard's to judge
            lost = sorted({f"probe {one.probe}" for one in self.items})
            return ProbeResult([], {}, self.digest, lost, time.monotonic() - begun)
        probes = {name: _shown(one) for name, one in scoring.by_probe(self.items, items).items()}
        return ProbeResult(items, probes, self.digest, [], time.monotonic() - begun)

    def _answers(self, engine: TrainingEngine) -> torch.Tensor:
        """-ln p and whether it is the most probable token, of all targets of all batches in order [N, 2]."""
        from plinth.evaluation.engine.inference import run

        sizes = [one.targets for one in self._batches]
        answers = torch.zeros(sum(sizes), 2, dtype=torch.float32, device=engine.rank.device)
        starts, place = list(accumulate(sizes, initial=0)), engine.topology.place
        # One thread, as over a checkpoint: on some processors a sum by two rounds otherwise.
        with engine.evaluating(), _eager(self.config.parallel.compile), torch_threads():
            for index in dealt(engine, len(sizes)):
                batch = self._batches[-1 if index is None else index]
                found = run(
                    engine.arranged, batch, engine.rank.device, engine.dtype, multiple=engine.topology.shape.sequence
                )
                if index is not None and place.tensor == 0:  # tensor ranks know the same
                    answers[starts[index] : starts[index + 1]] = found
        dist.all_reduce(answers)
        return answers


def _shown(score: Any) -> dict[str, float | int]:
    """A probe's numbers in an event; what it has none of is left out."""
    numbers = {
        "score": score.bits_per_byte,
        "control": score.bits_per_byte + score.signal,
        "margin": score.margin,
        "accuracy": score.accuracy,
        "items": score.items,
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _eager(compiled: bool) -> contextlib.AbstractContextManager[Any]:
    if not compiled:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


#: Seconds after which a long evaluation touches the timeline, so that the supervisor does not end it as hanging.
HEARTBEAT_S = 1.0


def dealt(engine: TrainingEngine, count: int) -> Iterator[int | None]:
    """Numbers below `count` of this rank's replica, in order; None in a round in which it has none.

    Every rank has as many rounds as every other: with ZeRO-3 each forward pass is a collective.
    """
    place, shape = engine.topology.place, engine.topology.shape
    mine, shown = range(place.data, count, shape.data), time.monotonic()
    for number in range(-(-count // shape.data)):
        yield mine[number] if number < len(mine) else None
        if engine.rank.leads and time.monotonic() - shown > HEARTBEAT_S:
            shown = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(engine.config.directory.events)  # the supervisor ends ranks that change nothing for long
