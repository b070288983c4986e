"""Compiled blocks: one graph for all layers and each shape, and none after the warm-up, whatever is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.training.engine.device_measurements import LayerMonitor
from plinth.training.parallel.divided_decoder import wrap_blocks
from plinth.training.parameters.parallel import Parallel
from tests.peers import Peer

dynamo = Peer("torch._dynamo.utils")

LAYERS, LENGTHS = 12, (8, 16)

Step = Callable[[int, int], None]


@pytest.fixture(autouse=True)
def _own_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
        yield
    torch._dynamo.reset()


#: Forms of blocks, with the number of graphs that they need of those of a plain block.
FORMS: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({"qk_norm": True}, 1),
    "olmo2": ({"architecture": "olmo2"}, 1),
    "windows": ({"window": {"tokens": 4, "layers": ("sliding", "full")}, "sinks": True}, 1),
    "partly rotated": ({"rotary_fraction": 0.5}, 1),
}


def compiled(form: str) -> tuple[Step, Step, LayerMonitor]:
    """Training and validation steps (of a number and a row length) of a model with compiled blocks."""
    model = build(Model(layers=LAYERS, dim=16, heads=2, kv_heads=1, ffn_dim=16, **FORMS[form][0]), 50, 1)
    stats = LayerMonitor(model, LAYERS, every=2)
    wrap_blocks(model.blocks, Parallel(compile=True))

    def loss(number: int, length: int) -> Tensor:
        tokens = torch.randint(0, 50, (2, length + 1), generator=torch.Generator().manual_seed(number))
        found: Tensor = model(tokens[:, :-1], targets=tokens[:, 1:])
        return found

    def train(number: int, length: int) -> None:
        model.train()
        stats.begin(number)
        loss(number, length).backward()
        stats.end()

    def validate(number: int, length: int) -> None:
        model.eval()
        with torch.no_grad():
            loss(number, length)

    return train, validate, stats


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "form", ["llama", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in [*FORMS][1:])]
)
def test_nothing_is_compiled_again_over_measured_steps_lengths_and_validation(
    backend: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    dynamo.counters.clear()
    train, validate, stats = compiled(form)
    for length in LENGTHS:
        train(1, length)
        validate(1, length)
    made = dynamo.counters["stats"]["unique_graphs"]
    assert made == 2 * 2 * len(LENGTHS)  # before and after attention, trained and validated
    with torch.compiler.set_stance("fail_on_recompile"):
        for number in range(2, 6):  # every second one is measured
            for length in LENGTHS:
                train(number, length)
                validate(number, length)
    assert dynamo.counters["stats"]["unique_graphs"] == made
    assert not dynamo.counters["graph_break"]
    measured = stats.latest()
    assert measured is not None
    assert (measured.step, len(measured.named("logit_bound"))) == (4, LAYERS)


def test_more_shapes_than_are_kept_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr("plinth.training.parallel.divided_decoder.SHAPES", 2)
    _, validate, _ = compiled("llama")
    for length in (3, 4):
        validate(1, length)
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        validate(1, 5)
