"""Batches for a team's own trainer: the sequences that `plinth run batch` lists, in every form and on any ranks."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from plinth.compute.context import Context
from plinth.errors import MissingError, RecipeError
from plinth.records import Manifest
from plinth.sdk.data import IGNORED, OrderedSequences, StepBatches, flat, padded
from plinth.tokens.order.batch import documents_of_step
from plinth.tokens.order.steps import BatchChange
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.tokens.shards.reader import open_streams
from plinth.training.config import RunConfig
from plinth.training.data import open_batches, run_loader

STEPS = 12
Prepared = Callable[..., RunConfig]


@pytest.fixture
def config(prepared: Prepared) -> RunConfig:
    return prepared()


def as_listed(ctx: Context, config: RunConfig, shards: dict[str, Manifest], step: int) -> list[list[int]]:
    """The S + 1 tokens of each sequence of a step's global batch, read document by document as `plinth batch` lists
    them."""
    streams, found = open_streams(ctx.store, shards), []
    for sequence in documents_of_step(ctx, ctx.refs.load(config.mixture), shards, step - 1, config.steps):
        row: list[int] = []
        for piece in sequence.documents:
            assert piece.first == len(row)
            begin = piece.document.start
            if not row:  # it may continue a document
                begin = max(begin, sequence.sequence.start)
            row += streams[sequence.sequence.stream].read(begin, piece.tokens).astype(int).tolist()
        found.append(row)
    return found


def rows(batches: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The S + 1 tokens of each row: its inputs and its last label."""
    return [[*inputs.tolist(), int(labels[-1])] for one in batches
            for inputs, labels in zip(one["input_ids"], one["labels"], strict=True)]  # fmt: skip


@pytest.mark.parametrize(("world", "micro"), [(1, 4), (2, 1), (4, 1)])
def test_the_global_batch_of_a_step_is_the_listed_one(
    ctx: Context, config: RunConfig, data: Any, world: int, micro: int
) -> None:
    ranks = [list(StepBatches(config, rank=rank, world=world, micro_batch=micro)) for rank in range(world)]
    for step in (1, 7, STEPS):
        own = [rows([one for one in batches if one["step"] == step]) for batches in ranks]
        assert [len(part) for part in own] == [4 // world] * world
        assert [row for part in own for row in part] == as_listed(ctx, config, data[1], step)


def test_the_map_of_sequences_has_the_same_batches_however_it_is_divided(
    ctx: Context, config: RunConfig, data: Any
) -> None:
    sequences = OrderedSequences(config)
    assert len(sequences) == STEPS * 4
    loaded = list(DataLoader(sequences, batch_size=4))
    assert rows(loaded) == [row for step in range(1, STEPS + 1) for row in as_listed(ctx, config, data[1], step)]
    assert sequences[5]["input_ids"].equal(loaded[1]["input_ids"][1])
    assert pickle.loads(pickle.dumps(sequences))[5]["labels"].equal(sequences[5]["labels"])
    for outside in (-1, STEPS * 4):
        with pytest.raises(MissingError, match="no sequence"):
            sequences[outside]


def test_the_trainer_sees_what_plinths_own_loop_sees(config: RunConfig) -> None:
    ours = open_batches(config, 0)(1)
    theirs = iter(StepBatches(config, rank=0, world=1, micro_batch=2))
    for _ in range(STEPS):
        expanded = next(ours).expanded()
        for tokens, segments in zip(expanded.tokens, expanded.segments, strict=True):
            batch = next(theirs)
            assert np.array_equal(batch["input_ids"], tokens[:, :-1])
            assert np.array_equal(batch["labels"], tokens[:, 1:])
            begins = np.diff(segments[:, :-1], prepend=-1) != 0
            assert np.array_equal(batch["position_ids"] == 0, begins)
            assert (np.diff(batch["position_ids"])[~begins[:, 1:]] == 1).all()
    assert next(theirs, None) is None


@pytest.fixture
def child_signals() -> Iterator[None]:
    """DataLoader leaves a handler for the end of its workers behind."""
    handler = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, handler)


@pytest.mark.usefixtures("child_signals")
def test_workers_and_a_resume_give_the_same_order(config: RunConfig) -> None:
    whole = list(StepBatches(config, rank=1, world=2, micro_batch=1))
    made = StepBatches(config, rank=1, world=2, micro_batch=1)
    loaded = list(DataLoader(made, batch_size=None, num_workers=2))
    assert rows(loaded) == rows(whole)
    made.load_state_dict({"done": 7})
    assert made.state_dict() == {"done": 7}
    assert rows(list(made)) == rows([one for one in whole if one["step"] > 7])


def test_a_batch_schedule_is_followed(prepared: Prepared) -> None:
    config = prepared(batch_schedule=(BatchChange(from_step=5, global_batch_sequences=8),))
    made = list(StepBatches(config, rank=0, world=2, micro_batch=2))
    assert [one["step"] for one in made] == [1, 2, 3, 4, *[step for step in range(5, 9) for _ in range(2)]]
    assert {one["scored_tokens"] for one in made} == {4 * 32, 8 * 32}


def test_an_uneven_division_is_refused(config: RunConfig) -> None:
    with pytest.raises(RecipeError, match="does not divide"):
        run_loader(config, 0, 3, 1)


def compact() -> CompactBatch:
    """Two sequences of 5 + 1 tokens; documents begin at tokens 0, 2, 6 and 11, which is the last; padding follows."""
    return CompactBatch(
        np.arange(10, 22, dtype=np.uint16).reshape(2, 6),
        np.array([0, 2, 6, 11], np.int32),
        np.array([[2, 3], [8, 10]], np.int32),
    )


def test_forms_by_hand() -> None:
    made = padded(compact())
    assert made["input_ids"].tolist() == [[10, 11, 12, 13, 14], [16, 17, 18, 19, 20]]
    assert made["labels"].tolist() == [[11, 12, IGNORED, 14, 15], [17, 18, 19, IGNORED, IGNORED]]
    assert made["position_ids"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert all(column.dtype == torch.int64 for column in made.values())
    row = flat(compact())
    assert (row["cu_seqlens"].tolist(), row["cu_seqlens"].dtype) == ([0, 2, 5, 10], torch.int32)
    assert row["max_seqlen"] == 5
    for name, column in made.items():
        assert row[name].equal(column.reshape(-1))
