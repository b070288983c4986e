"""Hashes computed while memory is filled equal those of its final content, and a byte that changed on the way is
detected."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import altered_restore
import pytest
import torch

from plinth.errors import CheckpointError
from plinth.training.checkpoint import staging
from plinth.training.checkpoint.digest_tree import CHUNK_BYTES
from plinth.training.checkpoint.sharded_state import MASTER, WHOLE, Captured, ShardedState, Share, key_of, write
from plinth.training.checkpoint.staging import FilledTensors, tensors_digest
from plinth.training.config import RunConfig
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]
SIZE = CHUNK_BYTES // 4 + 100  # a chunk and a little


def fill(held: FilledTensors, tensor: torch.Tensor, begin: int, end: int) -> None:
    tensor[begin:end] = torch.arange(begin, end) % 251
    held.filled(tensor[begin:].data_ptr(), 4 * (end - begin))


@pytest.mark.parametrize(
    "order",
    [
        [(0, 10), (10, SIZE)],
        [(0, 10), (12, SIZE - 5)],  # two that are never filled, and an end
        [(SIZE // 2, SIZE), (0, SIZE // 2)],
        [(0, 50), (20, 60), (70, 90), (65, 66)],
        [],
    ],
)
def test_the_digest_is_of_the_memory_at_last(order: list[tuple[int, int]]) -> None:
    tensors = [torch.zeros(SIZE), torch.tensor(3.0), torch.ones(SIZE), torch.zeros(0), torch.ones(4, 4).t()]
    held = FilledTensors()
    held.follow(tensors)
    for begin, end in order:
        for tensor in (tensors[2], tensors[0]):
            fill(held, tensor, begin, end)
    tensors[1] += 1
    other = torch.zeros(8)
    held.filled(other.data_ptr(), 32)
    assert held.digest() == tensors_digest(tensors)
    assert held.digest() != tensors_digest([*tensors[:2], tensors[2] + 1, *tensors[3:]])


def test_of_tensors_that_must_be_copied_one_copy_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of every tensor on a GPU; here of tensors that are not contiguous."""
    copies, most, copied = [], 0, staging.bytes_of

    def counted(tensor: torch.Tensor) -> Any:
        nonlocal most
        data = copied(tensor)
        copies.append(weakref.ref(data))
        most = max(most, sum(copy() is not None for copy in copies))
        return data

    monkeypatch.setattr(staging, "bytes_of", counted)
    tensors, held = [torch.ones(4, number).t() for number in range(2, 7)], FilledTensors()
    held.follow(tensors)
    assert held.digest() == tensors_digest(tensors)
    assert (len(copies), most) == (10, 1)


def test_a_byte_that_changes_on_disk_or_in_transit_is_noticed(tmp_path: Path, monkeypatch: Any) -> None:
    values = torch.randn(3 * SIZE)
    pieces = {start: values[start : start + SIZE] for start in (0, SIZE, 2 * SIZE)}
    one = Share("w", (3 * SIZE,), WHOLE, 0, {})
    tensors = {key_of(one, MASTER, start): piece for start, piece in pieces.items()}
    write(Captured(tensors, {"shapes": {"w": [3 * SIZE]}}), tmp_path, 0)

    def read() -> tuple[torch.Tensor, str]:
        target, held = torch.full((3 * SIZE,), -1.0), FilledTensors()
        held.follow([target])
        with ExitStack() as stack:
            ShardedState(stack, tmp_path).fill(target, one, MASTER, held)
        return target, held.digest()

    target, digest = read()
    assert torch.equal(target, values)
    assert digest == tensors_digest([values])

    preadv = os.preadv
    with monkeypatch.context() as changed:  # as a read may: less than was asked for
        changed.setattr(os, "preadv", lambda fd, to, at: preadv(fd, [to[0][:1000]], at))
        assert read()[1] == digest
    for after in (0, 2):  # in transit; the last byte of a chunk

        def flipping(fd: int, to: list[Any], at: int, after: int = after) -> int:
            size = preadv(fd, to, at)
            to[0][size - 1 - after] ^= 1
            return size

        with monkeypatch.context() as changed:
            changed.setattr(os, "preadv", flipping)
            assert read()[1] != digest
    with monkeypatch.context() as changed:
        changed.setattr(os, "preadv", lambda fd, to, at: 0)
        with pytest.raises(CheckpointError, match="ends in w/master"):
            read()
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-5] ^= 64
    file.write_bytes(data)
    assert read()[1] != digest


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_restore_notices_a_byte_of_one_rank(make: Make) -> None:
    """Bytes change after verification: in a file, on the way to memory, in memory; on every rank, for every owner."""
    configs = {kind: make(run_id=f"{kind}-{'0' * 12}", precision="bf16") for kind in ("stage1", "stage3")}
    configs["stage3"] = make(run_id=f"stage3-{'0' * 12}", precision="bf16", parallel={"zero_stage": 3})
    for config in configs.values():
        config.directory.root.mkdir(parents=True, exist_ok=True)
    for answers in run_ranks(2, altered_restore.altered, list(configs.values())):
        for refused in answers:
            assert refused == {
                "nothing": "",
                "file": "optimizer_sha256",
                "transit": "optimizer_sha256",
                "master": "parameters_sha256",  # hashed already: the weights derived from it are not
                "weight": "parameters_sha256",
            }
