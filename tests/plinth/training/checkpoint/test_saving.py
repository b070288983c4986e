"""A save holds the state at its start, even if it is copied later; all ranks repeat a save that is lost."""

from __future__ import annotations

from collections.abc import Callable

import delayed_copy
import failed_save
import followed_save
import pytest
import torch

from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.staging import ALIGN, GROWTH, Arena, StagingLayout
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from tests.ranks import run_ranks


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_lost_save_is_made_again_at_the_next_step(make: Callable[..., RunConfig]) -> None:
    config = make(checkpoints=Checkpoints(every_steps=99, audit_steps=1, keep_last=9, mode="sync"))
    first, second = run_ranks(2, failed_save.train, config, 1, 4)
    assert second == ["5 again", "11 as planned", "12 as planned"]
    assert [one.split()[0] for one in first] == ["5", "11", "12"]
    assert checkpoint.committed(config.directory) == [5, 11, 12]


@pytest.mark.slow
def test_after_a_loss_the_leading_writer_is_the_first_to_start(make: Callable[..., RunConfig]) -> None:
    """The leading writer of an interrupted save waits for ranks with a live writer. The writer of a lost rank's
    successor never writes that part, so it must not be alive before that leading writer has ended."""
    config = make(checkpoints=Checkpoints(every_steps=99, audit_steps=11))
    config.directory.root.mkdir(parents=True)
    assert run_ranks(2, followed_save.save, config) == [True, False]
    assert checkpoint.committed(config.directory)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_copy_is_of_the_step_that_was_saved_while_the_next_is_trained(make: Callable[..., RunConfig]) -> None:
    """Every way in which DeepSpeed holds the state; the copy does not begin before the next update waits for it."""
    kinds: list[tuple[str, dict[str, int]]] = [("fp32", {"zero_stage": stage}) for stage in (0, 1, 3)]
    kinds += [("bf16", {"zero_stage": 0}), ("fp32", {"pipeline": 2})]
    configs = [
        make(run_id=f"kind-{number:012d}", precision=precision, parallel=Parallel(**parallel))
        for number, (precision, parallel) in enumerate(kinds)
    ]
    for config in configs:
        config.directory.root.mkdir(parents=True)
    for rank in run_ranks(2, delayed_copy.late, configs, timeout_s=300.0):
        for kind, one in zip(kinds, rank, strict=True):
            assert (one["free"], one["held"]) == (True, True), kind
            assert one["told"] == one["saved"] == one["loaded"], kind
            for part in ("parameters_sha256", "optimizer_sha256"):
                assert one["end"][part] != one["saved"][part], (kind, part)


def test_of_one_storage_only_what_is_needed_is_copied_and_that_once() -> None:
    flat, other = torch.arange(1000.0), torch.ones(3)
    tensors = [flat[10:20], flat[15:30], flat[500:600], other, flat[600:601], flat[5:5]]
    layout = StagingLayout(tensors)
    assert layout.bytes <= 4 * (20 + 101 + 3) + 4 * ALIGN
    block = torch.zeros(layout.bytes, dtype=torch.uint8)
    layout.copy(block)
    for index, tensor in enumerate(tensors):
        place = layout.describe(index, "t")
        found = block[place.at : place.at + place.bytes]
        assert found.tolist() == list(tensor.numpy().tobytes()), index


def test_a_state_that_grows_a_little_finds_its_block_mapped() -> None:
    arena = Arena()
    block = arena.reserve(5000)
    block[:5000] = 7
    assert arena.reserve(5000 + GROWTH).data_ptr() == block.data_ptr()
    assert arena.reserve(arena.size + 1).numel() == arena.size
    assert set(arena.block[:5000].tolist()) == {7}  # the same memory, by another mapping
    arena.close()
