"""Digests of tensors: every single flipped bit changes them, and so do order, shape of the list and dtype's bytes."""

from __future__ import annotations

import pytest
import torch

from plinth.training.corruption.state import COLUMNS, digest, digest_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, COLUMNS, COLUMNS + 1])
def test_every_flipped_bit_changes_the_digest(dtype: torch.dtype, size: int) -> None:
    tensor = torch.arange(size).to(dtype)
    before, whole = int(digest_of(tensor)), tensor.view(torch.uint8).view(-1)
    for at in range(0, len(whole), max(1, len(whole) // 50)):
        for bit in range(8):
            whole[at] ^= 1 << bit
            assert int(digest_of(tensor)) != before
            whole[at] ^= 1 << bit
    assert int(digest_of(tensor)) == before


def test_the_digest_covers_order_and_every_tensor() -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    found = {int(digest(given, CPU)) for given in ([first, second], [second, first], [first], [first.flip(0), second])}
    assert len(found) == 4
    assert int(digest([], CPU)) == int(digest_of(torch.empty(0))) == 0
    rows = torch.zeros(3 * COLUMNS)
    rows[0], moved = 1.0, torch.zeros(3 * COLUMNS)
    moved[COLUMNS] = 1.0  # the same column of another row
    assert int(digest_of(rows)) != int(digest_of(moved))
