"""Declarations of modules, and the part of a decoder that a rank holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plinth.model.decoder import build, empty
from plinth.model.division import Division, Initial, PipelineStage, TensorRanks, bounds, declarations, initialise
from plinth.model.loss import CHUNK_ELEMENTS
from plinth.model.parameters import Model
from plinth.operation.memory import parameters_of_rank
from plinth.training.parameters.parallel import Parallel


@given(st.integers(1, 300), st.integers(1, 8))
def test_bounds_are_those_of_torch_chunk(size: int, parts: int) -> None:
    found = [end - start for start, end in (bounds(size, parts, index) for index in range(parts))]
    wanted = [len(part) for part in torch.arange(size).chunk(parts)]
    assert found == wanted + [0] * (parts - len(wanted))


LLAMA = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64)
MODELS = {
    "llama": LLAMA,
    "untied": LLAMA.model_copy(update={"tied_embeddings": False}),
    "qk norm": LLAMA.model_copy(update={"qk_norm": True}),
    "olmo2": Model.model_validate({**LLAMA.model_dump(), "architecture": "olmo2", "qk_norm": True}),
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_every_parameter_is_declared_and_every_matrix_divided(kind: str) -> None:
    model = build(MODELS[kind], 61, 1)
    declared = declarations(model)
    assert list(declared) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert (declared[name].role == "gain") == (parameter.dim() == 1), name
        assert parameter.dim() == 1 or declared[name].axis is not None, name
        assert (declared[name].role == "residual") == (declared[name].axis == 1), name  # back into the residual stream


def test_a_parameter_that_no_module_declares_is_named() -> None:
    model = build(LLAMA, 61, 1)
    model.layers["0"].extra = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(KeyError, match=r"layers\.0\.extra\.weight"):
        declarations(model)


class Pretended(TensorRanks):
    """One of several tensor ranks, without the others."""

    def __init__(self, size: int, index: int) -> None:
        self.size, self.index = size, index


@pytest.mark.parametrize("kind", list(MODELS))
def test_parts_of_all_ranks_are_the_whole(kind: str) -> None:
    config, size = MODELS[kind], 2
    whole = dict(build(config, 61, 1).named_parameters())
    ranks = [empty(config, 61, Division(tensor=Pretended(size, index))) for index in range(size)]
    for rank in ranks:
        initialise(rank, Initial(config, 1))
    parts = [dict(rank.named_parameters()) for rank in ranks]
    for name, declared in declarations(ranks[0]).items():
        held = [part[name] for part in parts]
        joined = held[0] if declared.axis is None else torch.cat(held, declared.axis)
        assert torch.equal(joined, whole[name]), name


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (4, [2, 1, 1, 1]), (5, [1] * 5)]
)
def test_layers_are_divided_evenly_and_once(count: int, expected: list[int]) -> None:
    spans = [PipelineStage(index, count).layers(5) for index in range(count)]
    assert [len(span) for span in spans] == expected
    assert [layer for span in spans for layer in span] == list(range(5))


def test_a_stage_holds_its_layers_by_their_names() -> None:
    whole = [name for name, _ in build(LLAMA, 61, 1).named_parameters()]
    stages = [PipelineStage(index, 2) for index in range(2)]
    held = [[name for name, _ in empty(LLAMA, 61, Division(stage=stage)).named_parameters()] for stage in stages]
    assert sorted(held[0] + held[1]) == sorted(whole)
    for name in whole:
        assert name in held[stages[0].owner(name, LLAMA.layers)], name


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_plan_counts_what_a_rank_holds(kind: str) -> None:
    rank = empty(MODELS[kind], 60, Division(tensor=Pretended(2, 0)))
    held = sum(parameter.numel() for parameter in rank.parameters())
    assert held == parameters_of_rank(MODELS[kind], 60, Parallel(tensor=2))


def test_plan_knows_how_many_logits_the_loss_holds() -> None:
    from plinth.operation.memory import LOGITS_AT_ONCE

    assert LOGITS_AT_ONCE == CHUNK_ELEMENTS
