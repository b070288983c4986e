"""Bits per byte of held-out slices while a run trains, on all its ranks.

    M  windows of a micro batch    S  tokens of the longest window in it, and padding after it

The windows are those of the final evaluation (`engine.batches.windows`). Micro batches are fixed by the text and the
recipe and dealt to data ranks in turn; each is summed by itself and the sums are added in their order, so that the
numbers do not depend on how many ranks share the work. Every rank makes as many forward passes as every other: with
ZeRO-3 each is a collective. Nothing is drawn at random, no gradient is made and no parameter changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from plinth.errors import TrainingError
from plinth.evaluation.engine.batches import ScoringWindow, windows
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.engine.engine import TrainingEngine
from plinth.training.validation.probing import ProbeResult, ProbeScorer, dealt

if TYPE_CHECKING:
    from plinth.training.validation.heldout import HeldoutSlice

#: Lengths that micro batches are padded to: few shapes for kernels, at most an eighth of a sequence wasted.
LENGTHS = 8


class Micro(NamedTuple):
    """One forward pass: the windows of it, each of one document of the slice."""

    slice: int
    jobs: tuple[tuple[int, ScoringWindow], ...]


class ValidationResult(NamedTuple):
    """Bits per byte by slice (not finite when the model has diverged), and what it took."""

    slices: dict[str, float]
    seconds: float
    probes: ProbeResult | None = None

    def event(self) -> dict[str, object]:
        """The fields of an event; slices and probes without a finite number are listed by name."""
        finite = {name: round(value, 6) for name, value in self.slices.items() if math.isfinite(value)}
        lost = sorted(set(self.slices) - set(finite))
        fields: dict[str, object] = {"slices": finite, "probes": {}, "seconds": round(self.seconds, 4)}
        if self.probes is not None:
            fields |= self.probes.event()
            fields["seconds"] = round(self.seconds + self.probes.seconds, 4)
            lost += self.probes.not_finite
        return fields | ({"not_finite": lost} if lost else {})


class Validator:
    """Evaluates the held-out slices of a run, and scores its probes; does nothing where the recipe has none."""

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
        """Whether to evaluate after this step."""
        return self.config.validates_at(step)

    def evaluate(self, engine: TrainingEngine, step: int) -> ValidationResult:
        """Bits per byte of every slice under the engine's parameters, as they are after `step`, and the probes where it
        is their turn; a collective."""
        begun = time.monotonic()
        slices = self._bits_per_byte(self._nats(engine).tolist())
        took = time.monotonic() - begun
        probes = self.probes.score(engine) if self.probes.due(step) else None
        found = ValidationResult(slices, took, probes)
        self._found = step, found
        return found

    def _nats(self, engine: TrainingEngine) -> torch.Tensor:
        """Of each micro batch the sum over its targets, FP64, on every rank."""
        place, shape = engine.topology.place, engine.topology.shape
        totals = torch.zeros(len(self._micros), dtype=torch.float64, device=engine.rank.device)
        with engine.evaluating():
            for index in dealt(engine, len(self._micros)):
                tokens, scored = self._arrays(index)
                loss = engine.loss_of(tokens, scored)
                if index is not None and place.tensor == 0:  # tensor ranks know the same, sequence ranks their share
                    totals[index] = loss.double() * int(scored.sum()) / shape.sequence
        dist.all_reduce(totals)
        return totals

    def state(self, step: int) -> dict[str, dict[str, float]]:
        """The slices for a checkpoint of this step, if they were evaluated after this very step."""
        if self._found is None or self._found[0] != step:
            return {}
        return {"slices": {name: value for name, value in self._found[1].slices.items() if math.isfinite(value)}}

    def _bits_per_byte(self, nats: Sequence[float]) -> dict[str, float]:
        sums: list[list[float]] = [[] for _ in self.slices]
        for micro, value in zip(self._micros, nats, strict=True):
            sums[micro.slice].append(value)
        return {one.name: sum(own) / math.log(2) / one.bytes for one, own in zip(self.slices, sums, strict=True)}

    def _arrays(self, index: int | None) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Tokens [M, S + 1] and which targets count [M, S]; for no micro batch, one that counts nothing."""
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
    """Windows of like length together, so that little is padding; every micro batch of one slice."""
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
    """Lengths are multiples of this; sequence ranks must be able to divide them."""
    unit, ranks = config.sequence_tokens // LENGTHS, config.parallel.sequence
    return unit if unit and unit % ranks == 0 and config.sequence_tokens % unit == 0 else config.sequence_tokens


def _named(config: RunConfig) -> str:
    if not config.heldout:
        raise TrainingError(
            f"run {config.run_id} has validation but no held-out text",
            found="training.validation in a configuration without `heldout`",
            expected="the digest that preparing the run gives",
            remedy="submit the run again: `plinth run --select run`",
        )
    return config.heldout
