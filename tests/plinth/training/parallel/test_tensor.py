"""How matrices are cut, without ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plinth.model.decoder import build
from plinth.model.loss import CHUNK_ELEMENTS
from plinth.model.parameters import Model
from plinth.operation.planning.memory import parameters_of_rank
from plinth.training.parallel.parameters import Parallel
from plinth.training.parallel.sequence import repeats
from plinth.training.parallel.tensor import axis_of, bounds


@given(st.integers(1, 300), st.integers(1, 8))
def test_bounds_are_those_of_torch_chunk(size: int, parts: int) -> None:
    found = [end - start for start, end in (bounds(size, parts, index) for index in range(parts))]
    wanted = [len(part) for part in torch.arange(size).chunk(parts)]
    assert found == wanted + [0] * (parts - len(wanted))


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_is_divided_and_no_norm(tied: bool) -> None:
    config = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True, tied_embeddings=tied)
    model = build(config, 61, 1)
    assert all((axis_of(name) is None) == (parameter.dim() == 1) for name, parameter in model.named_parameters())


def test_plan_counts_what_a_rank_holds() -> None:
    config = Model(layers=4, dim=32, heads=4, kv_heads=2, ffn_dim=64)
    held = 0
    for name, parameter in build(config, 60, 1).named_parameters():
        axis = axis_of(name)
        held += parameter.numel() // (1 if axis is None else 2)
    assert held == parameters_of_rank(config, 60, Parallel(tensor=2))


def test_plan_knows_how_many_logits_the_loss_holds() -> None:
    from plinth.operation.planning.memory import LOGITS_AT_ONCE

    assert LOGITS_AT_ONCE == CHUNK_ELEMENTS


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
def test_repeated_heads_divide_and_keep_company(kv_heads: int, shared: int, size: int) -> None:
    """Each rank's queries must find their own key/value head on it, whichever way heads are numbered."""
    heads = kv_heads * shared
    if heads % size:
        return
    times = repeats(heads, kv_heads, size)
    owners = [k for k in range(kv_heads) for _ in range(times)]  # of the repeated heads
    wanted = [q // shared for q in range(heads)]  # of each query
    for rank in range(size):
        keys = owners[rank * len(owners) // size : (rank + 1) * len(owners) // size]
        queries = wanted[rank * heads // size : (rank + 1) * heads // size]
        assert queries == [keys[q * len(keys) // len(queries)] for q in range(len(queries))]
