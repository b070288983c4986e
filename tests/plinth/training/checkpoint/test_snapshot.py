"""State that is saved in addition to tensors, and state that is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from plinth.errors import ResumeError
from plinth.launch.parameters import Launch, Supervision
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.snapshot import generators, parameters_digest, require_same_run, restore_generators
from plinth.training.config import RunConfig, identity
from plinth.training.engine.ranks import precision_of
from plinth.training.forensics import audit
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import Timeline

Make = Callable[..., RunConfig]


def draws() -> tuple[Any, ...]:
    return random.gauss(0, 1), np.random.normal(), torch.randn(3).tolist()


def test_generators_round_trip() -> None:
    random.gauss(0, 1)
    np.random.normal()  # both keep a second value back, which is state too
    state = generators()
    first = draws()
    assert draws() != first
    restore_generators(state)
    assert draws() == first


def test_digest_covers_names_types_shapes_and_bytes() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    variants = [
        ("a", tensor),
        ("b", tensor),
        ("a", tensor.view(2, 3)),
        ("a", tensor.view(torch.int32)),
        ("a", tensor + torch.tensor([0, 0, 0, 0, 0, 1e-6])),
    ]
    assert len({parameters_digest([variant]) for variant in variants}) == len(variants)
    assert parameters_digest([("a", tensor.to(torch.bfloat16))]) == parameters_digest([("a", tensor.bfloat16())])


def test_states_of_other_runs_and_precisions_are_refused(make: Make) -> None:
    config = make()
    state = {"identity": identity(config, 3), "step": 3, "ranks": 2, "precision": "fp32"}
    require_same_run(config, "fp32", state)
    for change, message in (
        ({"identity": "x"}, "has other settings than step-00000003"),
        ({"precision": "bf16"}, "another precision"),
    ):
        with pytest.raises(ResumeError, match=message):
            require_same_run(config, "fp32", {**state, **change})


def test_identity_ignores_place_and_policy(make: Make) -> None:
    moved = make(
        workspace="/elsewhere",
        launch=Launch(ranks=1),
        checkpoints=Checkpoints(every_steps=1),
        supervision=Supervision(max_restarts=0),
    )
    assert identity(moved) == identity(make())
    assert identity(make(seed=2)) != identity(make())


def test_auto_is_bf16_only_where_it_is_native(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for capabilities, expected in (
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_bf16": True}, "bf16"),
        ({"avx2": True}, "fp32"),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert precision_of(make(precision="auto"), cpu) == expected
        assert precision_of(make(precision="fp32"), cpu) == "fp32"


def test_evidence_shows_a_difference(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that differs in anything is evidence against, with the size of the difference."""
    config = make(total_steps=4, checkpoints=Checkpoints(audit_steps=2))
    rows = {
        step: {"loss": float(step), "grad_norm": 1.0, "lr": 0.1, "loss_ema": 1.0, "batch": "b", "vetoed": False}
        for step in (3, 4)
    }
    events = Timeline(config.directory.events)
    for step, row in rows.items():
        events.append("step", step=step, **row)
    monitor = {"loss_ema": 1.0, "guard": {"rollbacks": []}}
    state = {"parameters_sha256": "p", "optimizer_sha256": ["o"], "rng_sha256": ["r"], "monitor": monitor}
    saved = {**state, "monitor": {**monitor, "slices": {"web": 1.5}}, "layout": {"ranks": 2}}
    monkeypatch.setattr(checkpoint, "read_state", lambda run, step: saved)

    def evidence(row: dict[str, Any], found: dict[str, Any], difference: float = 0.0) -> dict[str, Any]:
        again = audit.Replayed({3: rows[3], 4: {**rows[4], **row}}, states={4: {**state, **found}})
        again.difference = difference
        return audit.compare(config, 2, again)

    assert evidence({}, {})["bit_exact"] is True
    for row, found in (
        ({"loss": 4.25}, {}),
        ({"batch": "c"}, {}),
        ({"lr": 0.2}, {}),
        ({}, {"rng_sha256": ["x"]}),
        ({}, {"monitor": {**monitor, "loss_ema": 2.0}}),
    ):
        assert evidence(row, found)["bit_exact"] is False, (row, found)
    other = evidence({"loss": 4.25, "batch": "c"}, {}, 0.5)
    assert other["max_abs_difference"] == {"loss": 0.25, "grad_norm": 0.0, "parameters": 0.5}
    assert other["same_batches"] is False
