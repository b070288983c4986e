"""The ring's training hooks: order, identity, keys of their own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from plinth.errors import TrainingError
from plinth.recipe.extension_checks import problems_of_extensions
from plinth.training import config, hooks
from plinth.training.parameters.run import Training

FEDERATED = {"site": "oslo", "sites": ["lima", "oslo"], "exchange": "/exchange"}


def training(**given: Any) -> Training:
    return Training.model_validate({"guard": {"enabled": False}, **given})


def test_built_in_hooks_come_in_a_fixed_order() -> None:
    found = training(federated=FEDERATED, distillation={"teacher": "a@b"})
    assert [hook.name for hook, _ in hooks.asked(found)] == ["distillation", "federated"]
    assert hooks.assets(found) == ("teacher",)
    assert (hooks.one_by_one(found), hooks.one_by_one(training(privacy={"epsilon": 8, "delta": 1e-6}))) == (False, True)
    problems = problems_of_extensions({"training": {"extensions": {"privacy": {}}}})
    assert [message for _, message, _ in problems] == ["is a built-in, not an extension"]


def test_each_section_decides_the_run_and_a_place_does_not() -> None:
    sections = (
        {},
        {"distillation": {"teacher": "large@champion"}},
        {"federated": FEDERATED},
        {"privacy": {"epsilon": 8.0, "delta": 1e-6}},
        {"privacy": {"epsilon": 8.0, "delta": 1e-7}},
    )
    keys = [config.run_key(training(**given), "m", "t") for given in sections]
    assert len(set(keys)) == len(keys)
    moved = training(federated={**FEDERATED, "exchange": "s3://exchange"})
    assert config.run_key(moved, "m", "t") == keys[2]


def test_a_private_run_refuses_biases_that_follow_loads_without_noise() -> None:
    experts = {"count": 4, "active": 2, "ffn_dim": 16, "shared": 1, "score": "sigmoid"}
    private = {"privacy": {"epsilon": 8.0, "delta": 1e-6}}
    training(model={"experts": experts}, **private)
    with pytest.raises(ValidationError, match=r"privacy cannot be combined with model\.experts\.balancing loss_free"):
        training(model={"experts": {**experts, "balancing": "loss_free"}}, **private)


def test_a_run_of_an_absent_package_is_refused_by_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"privacies": {}}')
    monkeypatch.setattr(config, "refusal", lambda key: f"`{key}` needs the package plinth_extras")
    with pytest.raises(TrainingError, match="needs the package plinth_extras"):
        config.load(path)
