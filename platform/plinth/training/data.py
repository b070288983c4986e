"""Batches that a rank trains on: the interface between data order and training loop."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from plinth.errors import TrainingError
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing_layout import open_layouts
from plinth.tokens.reading.compact_batch import CompactBatch, ExpandedBatch, split_rows
from plinth.tokens.reading.loader import Loader, RankBatch, prefetched
from plinth.tokens.reading.shard_sources import open_shards, proved_batches
from plinth.tokens.shards.parameters import Reading
from plinth.training import hooks
from plinth.training.config import RunConfig
from plinth.training.guard.rules import NONE_BROKEN, count_broken, require_streams
from plinth.training.parallel.topology import RankPlace, place_of

#: Assets in the workspace's store.
READING = Reading()


class Examination(NamedTuple):
    """Sums over one replica's rows of a batch, to be added over all replicas: the batch fingerprint, and the number of
    rows that violate each screening rule.

    Attributes:
        words: two 32-bit words that identify content and position (`fingerprint_of`).
        broken: number of rows that violate each screening rule.
    """

    words: tuple[int, int]
    broken: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StepBatch:
    """The input of one rank in one optimizer step.

    A  micro batches    M  rows of a micro batch    l  tokens of a row

    Every token is a target, including the first token of a document after the previous end-of-text token. The model
    thus learns to begin a text, which generation and evaluation need. Padding is not scored. If a piece starts in the
    middle of a document, the context before the piece is not scored either.

    Attributes:
        micro: [A] sequences of each micro batch, as stored (`tokens.reading.compact_batch`).
        length: l, which divides S: batch expansion cuts a sequence into S / l rows.
        scored_tokens: number of scored targets in the whole step, over all ranks; None if all targets are scored.
        hook_inputs: [A] additional input of each hook that reads more than the text, by the hook's name.
        examination: examination of the rows, if the loading thread has examined them.
        streams: names of the streams by number.
        numbered: True if each row has a number in the global batch; False if a step is an unordered set of rows.
    """

    micro: tuple[CompactBatch, ...]
    length: int
    scored_tokens: int | None = None
    beside: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    examination: Examination | None = None
    streams: tuple[str, ...] = ()
    numbered: bool = True

    @classmethod
    def of(
        cls,
        tokens: npt.NDArray[Any],
        segments: npt.NDArray[Any] | None = None,
        scored: npt.NDArray[np.bool_] | None = None,
        scored_tokens: int | None = None,
    ) -> StepBatch:
        """Create a batch from arrays with one entry per token: ids [A, M, S + 1] and a mask of scored targets [A, M,
        S]."""
        columns = [tokens, *([None] * len(tokens) if column is None else column for column in (segments, scored))]
        micro = tuple(CompactBatch.of(*rows) for rows in zip(*columns, strict=True))
        return cls(micro, tokens.shape[-1] - 1, scored_tokens)

    def __len__(self) -> int:
        return len(self.micro)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the expanded ids: A, M and l + 1."""
        rows, width = self.micro[0].tokens.shape
        return len(self), rows * (width - 1) // self.length, self.length + 1

    def expanded(self) -> ExpandedBatch:
        """Return the batch with one entry per token: ids [A, M, l + 1], and a mask of scored targets [A, M, l].

        Neighboring rows that are cut from one sequence share a token, as neighboring sequences do. Every target thus
        occurs once. The rows keep the document numbers of the sequence. Attention and positions restart in each row (Li
        et al., arXiv:2108.06084, "sequence length warmup").
        """
        each = [rows.expanded() for rows in self.micro]
        tokens, segments = (
            np.stack([split_rows(column, self.length) for column in columns])
            for columns in ([own.tokens for own in each], [own.segments for own in each])
        )
        scored = [own.scored.reshape(-1, self.length) for own in each if own.scored is not None]
        return ExpandedBatch(tokens, segments, np.stack(scored) if scored else None)

    def weights(self, data_ranks: int) -> list[float] | None:
        """Return the factor of each micro batch's mean loss, or None if every target is scored and all factors are 1.

        With these factors, the mean over micro batches and data ranks equals the mean over all scored targets of the
        step.

        For n scored targets of N, A micro batches and R ranks the factor w is n A R / N, because (1 / A R) sum(w mean)
        = sum(n mean) / N.
        """
        if self.scored_tokens is None:
            return None
        counts = [int(rows.scored_counts.sum()) for rows in self.micro]
        return [float(count) * len(counts) * data_ranks / self.scored_tokens for count in counts]


class Batches(Protocol):
    """Batches of one rank, from any start step (steps count from 1)."""

    def __call__(self, first_step: int) -> Iterator[StepBatch]: ...


def open_batches(config: RunConfig, rank: int) -> Batches:
    """Open the data order of the run's mixture. Step n of training is step n - 1 of the order.

    Raises:
        MissingError, IntegrityError: manifests or shards are absent or have changed.
    """
    micro_sequences, place = config.micro_batch_sequences, place_of(config.parallel, config.ranks, rank)
    loader = run_loader(config, place.data, config.data_ranks)
    screening, names = config.guard.screening, loader.order.streams
    if screening is not None:
        require_streams(screening, names)
    own = hooks.asked(config)
    reads = {hook.name: reading for hook, state in own if hook.reads and (reading := hook.reads(config, place, state))}
    one_by_one = hooks.one_by_one(config)

    def step_batch(share: RankBatch) -> StepBatch:
        if one_by_one:  # a variable number of sequences, each by itself
            alone = tuple(share.micro_batch(each, 1) for each in range(len(share)))
            return StepBatch(alone, config.sequence_tokens, numbered=False)
        count = len(share) // micro_sequences
        micro = tuple(share.micro_batch(each, micro_sequences) for each in range(count))
        total = None if share.unscored is None else share.scored_tokens
        beside = {name: reading(share.step, len(share)) for name, reading in reads.items()}
        batch = StepBatch(micro, config.steps.length(share.step), total, beside, streams=tuple(names))
        streams = [names[number] for number in share.streams.tolist()]
        return replace(batch, examination=examined(batch, config, place, streams))

    def stream(first_step: int) -> Iterator[StepBatch]:
        proved = proved_batches(loader, first_step - 1, config.total_steps, config.reading.ahead)
        return prefetched(map(step_batch, proved), loader.prefetch)

    return stream


def run_loader(config: RunConfig, rank: int, world: int, micro_batch: int | None = None) -> Loader:
    """Return the loader of the run's data order for the data rank with number `rank` of `world`.

    Args:
        micro_batch: sequences per micro batch; the run's own if None.

    Raises:
        RecipeError: the global batch does not divide into ranks and micro batches.
        MissingError, IntegrityError: manifests or shards are absent or have changed.
    """
    return open_loader(
        Workspace(config.workspace),
        config.mixture,
        config.shards.values(),
        config.reading,
        config.blocks,
        global_batch=config.draws,
        micro_batch=micro_batch or config.micro_batch_sequences,
        rank=rank,
        world=world,
    )


def open_loader(
    workspace: Workspace,
    mixture: str,
    shards: Iterable[str],
    reading: Reading = READING,
    blocks: str = "",
    *,
    global_batch: int | Steps = 1,
    micro_batch: int = 1,
    rank: int = 0,
    world: int = 1,
) -> Loader:
    """Return the loader of a mixture's data order. The manifests are given by their digests.

    Args: the same as in `open_shards` and `Loader`.

    Raises:
        MissingError, IntegrityError: manifests or shards are absent or have changed.
    """
    refs = Refs(workspace)
    mixed = refs.load(mixture)
    listed = refs.load(blocks) if blocks else None
    opened = open_shards(open_store(workspace), map(refs.load, shards), reading, listed)
    readers, order = opened.readers, Order(mixed)
    known = {name: readers[name].tokens for name in order.streams if name in readers}
    layouts = open_layouts(opened.store, refs.load, mixed, known)
    return Loader(order, readers, layouts, global_batch=global_batch, micro_batch=micro_batch, rank=rank, world=world)


def batches_of(config: RunConfig, rank: int) -> Batches:
    """Open the source of batches that `config.batches` names.

    Raises:
        TrainingError: the configured function does not exist.
    """
    module, _, function = config.batches.partition(":")
    try:
        opener = cast(Callable[[RunConfig, int], Batches], getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise TrainingError(
            "the configured source of batches does not exist", found=config.batches, expected="module:function"
        ) from error
    return opener(config, rank)


def examined(batch: StepBatch, config: RunConfig, place: RankPlace, streams: Sequence[str] = ()) -> Examination:
    """Return this rank's examination of the rows of a step, or an empty one if another rank examines the same rows.

    Args:
        streams: name of each row's stream, in the order of the micro batches.
    """
    if not place.leads:
        return Examination((0, 0), NONE_BROKEN)
    if batch.examination is not None:
        return batch.examination
    policy, broken, first = config.guard.screening, np.array(NONE_BROKEN), 0
    if policy is not None and config.guard.enabled:
        for rows in batch.micro:
            broken += count_broken(policy, rows, streams[first : first + len(rows)])
            first += len(rows)
    return Examination(fingerprint_of(batch, place), tuple(broken.tolist()))


def fingerprint_of(batch: StepBatch, place: RankPlace) -> tuple[int, int]:
    """Return two 32-bit words that identify content and position of a batch. Their sum over ranks is exact in FP64.

    Each row of the global batch is hashed with its row number, and the hashes are summed. The sum does not depend on
    the number of ranks or on their layout. If several ranks see the same rows, only one of them adds to the sum.
    """
    if not place.leads or not batch.micro:
        return 0, 0
    columns = [column.reshape(-1, column.shape[-1]) for column in batch.expanded() if column is not None]
    rows, first, second = len(columns[0]), 0, 0
    for row in range(rows):
        number = place.data * rows + row if batch.numbered else 0
        digest = hashlib.sha256(number.to_bytes(8, "little"))
        for column in columns:
            digest.update(column[row].data)
        words = digest.digest()
        first += int.from_bytes(words[:4], "little")
        second += int.from_bytes(words[4:8], "little")
    return first % 2**32, second % 2**32
