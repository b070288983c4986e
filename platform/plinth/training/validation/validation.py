"""Evaluation of held-out text and probes during training, on all ranks."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from plinth.compute.engine import torch_threads
from plinth.errors import TrainingError
from plinth.evaluation.engine.batches import ScoringWindow, windows
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.engine.engine import TrainingEngine

if TYPE_CHECKING:
    from plinth.evaluation.probes.scoring import ItemScore
    from plinth.training.validation.heldout import HeldoutSlice


# Scoring of probes with the live model on all ranks, equivalent to `evaluation.engine` on a checkpoint.
#
#     N  targets of a batch
#
# The batches are those of the offline score (`evaluation.engine.batches`), determined by the items, and are dealt to
# data ranks in turn; each target is computed on one rank, so adding the ranks' answers changes no bit. For an undivided
# model on the same device and precision the bits equal those of the offline score of the same weights; tensor, sequence
# and pipeline ranks round as their kernels do. Blocks are never compiled here: probes have many lengths.
#
# There is no randomness and no gradient, and no parameter changes.

class ProbeResult(NamedTuple):
    """Result of one evaluation of the probes.

    Attributes:
        items: scores of every item; empty if the model has diverged.
        probes: numbers for the timeline event, by probe.
        digest: digest of the items.
        not_finite: probes without a finite number.
        seconds: duration.
    """

    items: list[ItemScore]
    probes: dict[str, dict[str, float | int]]
    digest: str
    not_finite: list[str]
    seconds: float

    def event(self) -> dict[str, object]:
        """Return the probe fields of the event `evaluated`. The numbers are not rounded, so they equal the offline
        score bit for bit."""
        return {"probes": self.probes, "probe_set": self.digest, "probe_seconds": round(self.seconds, 4)}


class ProbeScorer:
    """Scorer of a run's probes. It does nothing if the run has no probes."""

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
        """Return True if probes are scored after this step, which is at every n-th held-out evaluation and at the last
        one."""
        return step in self._steps

    def score(self, engine: TrainingEngine) -> ProbeResult:
        """Score every probe under the engine's parameters. All ranks must call this."""
        from plinth.evaluation.engine import inference
        from plinth.evaluation.probes import scoring

        begun = time.monotonic()
        answers = self._answers(engine).cpu().numpy()
        starts = list(accumulate((one.targets for one in self._batches), initial=0))
        own = [answers[a:b] for a, b in pairwise(starts)]
        try:
            bits = inference.collect(self.streams, self._batches, own).bits.tolist()
            items = scoring.scored(self.items, bits)
        except TrainingError:  # the model has diverged; the guard decides
            lost = sorted({f"probe {one.probe}" for one in self.items})
            return ProbeResult([], {}, self.digest, lost, time.monotonic() - begun)
        probes = {name: _shown(one) for name, one in scoring.by_probe(self.items, items).items()}
        return ProbeResult(items, probes, self.digest, [], time.monotonic() - begun)

    def _answers(self, engine: TrainingEngine) -> torch.Tensor:
        """Return two numbers [N, 2] for each target of all batches, in order: -ln p, and 1 if the target is the most
        probable token, otherwise 0."""
        from plinth.evaluation.engine.inference import run

        sizes = [one.targets for one in self._batches]
        answers = torch.zeros(sum(sizes), 2, dtype=torch.float32, device=engine.rank.device)
        starts, place = list(accumulate(sizes, initial=0)), engine.topology.place
        # One thread, as for a checkpoint: on some processors a sum by two threads rounds differently.
        with engine.evaluating(), _eager(self.config.parallel.compile), torch_threads():
            for index in dealt(engine, len(sizes)):
                batch = self._batches[-1 if index is None else index]
                found = run(
                    engine.arranged, batch, engine.rank.device, engine.dtype, multiple=engine.topology.shape.sequence
                )
                if index is not None and place.tensor == 0:  # tensor ranks have the same values
                    answers[starts[index] : starts[index + 1]] = found
        dist.all_reduce(answers)
        return answers


def _shown(score: Any) -> dict[str, float | int]:
    """Return a probe's numbers for an event. Missing numbers are left out."""
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


#: Interval in seconds at which a long evaluation touches the timeline, so that it does not count as hanging.
HEARTBEAT_S = 1.0


def dealt(engine: TrainingEngine, count: int) -> Iterator[int | None]:
    """Distribute the numbers below `count` over the replicas, and yield this replica's numbers in order.

    Every rank has the same number of rounds, because with ZeRO-3 each forward pass is a collective. In a round without
    a number for this replica, None is yielded.
    """
    place, shape = engine.topology.place, engine.topology.shape
    mine, shown = range(place.data, count, shape.data), time.monotonic()
    for number in range(-(-count // shape.data)):
        yield mine[number] if number < len(mine) else None
        if engine.rank.leads and time.monotonic() - shown > HEARTBEAT_S:
            shown = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(engine.config.directory.events)  # signals progress to the supervisor


# Bits per byte of held-out slices during training, on all ranks.
#
#     M  windows of a micro batch    S  tokens of the longest window in it, and padding after it
#
# The windows are those of the final evaluation (`engine.batches.windows`). Micro batches are determined by text and
# recipe and dealt to data ranks in turn; each is summed separately and the sums are added in order, so the result does
# not depend on the number of ranks. Every rank makes the same number of forward passes: with ZeRO-3 each is a
# collective. There is no randomness and no gradient, and no parameter changes.

#: Multiple for the padded lengths of micro batches: few kernel shapes, at most an eighth of a sequence wasted.
LENGTHS = 8


class Micro(NamedTuple):
    """One forward pass over several windows. Each window has one document of the slice."""

    slice: int
    jobs: tuple[tuple[int, ScoringWindow], ...]


class ValidationResult(NamedTuple):
    """Bits per byte of each slice (not finite if the model has diverged), the probe results, and the duration."""

    slices: dict[str, float]
    seconds: float
    probes: ProbeResult | None = None

    def event(self) -> dict[str, object]:
        """Return the fields of the event `evaluated`. Slices and probes without a finite number are listed by name."""
        finite = {name: round(value, 6) for name, value in self.slices.items() if math.isfinite(value)}
        lost = sorted(set(self.slices) - set(finite))
        fields: dict[str, object] = {"slices": finite, "probes": {}, "seconds": round(self.seconds, 4)}
        if self.probes is not None:
            fields |= self.probes.event()
            fields["seconds"] = round(self.seconds + self.probes.seconds, 4)
            lost += self.probes.not_finite
        return fields | ({"not_finite": lost} if lost else {})


class Validator:
    """Evaluator of a run's held-out slices and probes. It does nothing if the recipe has none."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.slices: list[HeldoutSlice] = []
        self._found: tuple[int, ValidationResult] | None = None
        if config.validation is not None:
            from plinth.training.validation import heldout  # Arrow and tokenizers: only for runs with validation

            workspace = Workspace(config.workspace)
            self.slices = heldout.load(open_store(workspace), Refs(workspace).load(_named(config)))
        self.probes = ProbeScorer(config)
        self._micros = list(_plan(self.slices, config.sequence_tokens, config.micro_batch_sequences))

    def due(self, step: int) -> bool:
        """Return True if held-out text is evaluated after this step."""
        return self.config.validates_at(step)

    def evaluate(self, engine: TrainingEngine, step: int) -> ValidationResult:
        """Return bits per byte of every slice under the engine's parameters after `step`, and the probe scores if they
        are due.

        All ranks must call this.
        """
        begun = time.monotonic()
        slices = self._bits_per_byte(self._nats(engine).tolist())
        took = time.monotonic() - begun
        probes = self.probes.score(engine) if self.probes.due(step) else None
        found = ValidationResult(slices, took, probes)
        self._found = step, found
        return found

    def _nats(self, engine: TrainingEngine) -> torch.Tensor:
        """Return the sum of the losses over the targets of each micro batch, in FP64, on every rank."""
        place, shape = engine.topology.place, engine.topology.shape
        totals = torch.zeros(len(self._micros), dtype=torch.float64, device=engine.rank.device)
        with engine.evaluating():
            for index in dealt(engine, len(self._micros)):
                tokens, scored = self._arrays(index)
                loss = engine.loss_of(tokens, scored)
                if index is not None and place.tensor == 0:  # equal on tensor ranks, a share on sequence ranks
                    totals[index] = loss.double() * int(scored.sum()) / shape.sequence
        dist.all_reduce(totals)
        return totals

    def state(self, step: int) -> dict[str, dict[str, float]]:
        """Return the bits per byte of each slice for a checkpoint, if they were measured after exactly this step."""
        if self._found is None or self._found[0] != step:
            return {}
        return {"slices": {name: value for name, value in self._found[1].slices.items() if math.isfinite(value)}}

    def _bits_per_byte(self, nats: Sequence[float]) -> dict[str, float]:
        sums: list[list[float]] = [[] for _ in self.slices]
        for micro, value in zip(self._micros, nats, strict=True):
            sums[micro.slice].append(value)
        return {one.name: sum(own) / math.log(2) / one.bytes for one, own in zip(self.slices, sums, strict=True)}

    def _arrays(self, index: int | None) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return the tokens [M, S + 1] and the mask of scored targets [M, S] of a micro batch. Without a micro batch,
        no target is scored."""
        rows, unit = self.config.micro_batch_sequences, _unit(self.config)
        micro = None if index is None else self._micros[index]
        longest = unit if micro is None else max(window.length for _, window in micro.jobs)
        length = min(-(-longest // unit) * unit, self.config.sequence_tokens)
        tokens, scored = np.zeros((rows, length + 1), np.int32), np.zeros((rows, length), np.bool_)
        if micro is None:
            return tokens, scored
        for row, (document, window) in enumerate(micro.jobs):
            stream = self.slices[micro.slice].streams[document]
            tokens[row, : window.length + 1] = stream[window.start : window.end + 1]
            scored[row, window.scored - 1 - window.start : window.length] = True
        return tokens, scored


def _plan(slices: Sequence[HeldoutSlice], sequence_tokens: int, rows: int) -> Iterator[Micro]:
    """Yield micro batches of windows with similar lengths, to reduce padding. Each micro batch belongs to one slice."""
    for number, one in enumerate(slices):
        jobs = [
            (document, window)
            for document, stream in enumerate(one.streams)
            for window in windows(len(stream) - 1, sequence_tokens)
        ]
        jobs.sort(key=lambda job: (-job[1].length, job[0], job[1].start))
        for start in range(0, len(jobs), rows):
            yield Micro(number, tuple(jobs[start : start + rows]))


def _unit(config: RunConfig) -> int:
    """Return the number by which all window lengths must be divisible, so that sequence ranks can divide the
    windows."""
    unit, ranks = config.sequence_tokens // LENGTHS, config.parallel.sequence
    return unit if unit and unit % ranks == 0 and config.sequence_tokens % unit == 0 else config.sequence_tokens


def _named(config: RunConfig) -> str:
    if not config.heldout:
        raise TrainingError(
            f"run {config.run_id} has validation but no held-out text",
            found="training.validation in a configuration without `heldout`",
            expected="the digest of the held-out text that the run's preparation has written",
            remedy="submit the run again: `plinth run --select run`",
        )
    return config.heldout
