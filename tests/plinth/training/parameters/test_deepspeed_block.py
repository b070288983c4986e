"""Settings of DeepSpeed that a recipe may set, those that are refused with their name, and those in the identity."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import TrainingError
from plinth.training.config import RunConfig, identity, run_key
from plinth.training.engine.deepspeed_engine import deepspeed_config
from plinth.training.parameters.parallel import HARMLESS, OTHERS, OWNED, ZERO, problems_with_settings
from plinth.training.parameters.run import Training
from tests.peers import Peer

deepspeed = Peer("deepspeed")
zero_config = Peer("deepspeed.runtime.zero.config")


def test_every_setting_of_the_engine_is_owned(make: Callable[..., RunConfig]) -> None:
    """But for logging: no block can change a value that the engine has set."""
    for precision in ("fp32", "bf16", "fp16"):
        settings = deepspeed_config(make(), precision, 100)
        for name, value in settings.items():
            own = [f"{name}.{key}" for key in value] if name == ZERO else [name]
            assert set(own) <= {*OWNED, "steps_per_print"}, name


@pytest.mark.parametrize("name", sorted(OWNED))
def test_an_owned_setting_is_refused_with_what_to_set(name: str, make: Callable[..., RunConfig]) -> None:
    block: Any = 1
    for key in reversed(name.split(".")):
        block = {key: block}
    ((path, reason),) = problems_with_settings(block)
    assert ".".join(path) == name
    assert OWNED[name] in reason
    with pytest.raises(TrainingError, match=re.escape(f"training.deepspeed.{name} is refused")):
        deepspeed_config(make(deepspeed=block), "fp32", 100)


def test_others_arrive_beside_the_engines_own(make: Callable[..., RunConfig]) -> None:
    block = {ZERO: {"stage3_max_live_parameters": 7}, "wall_clock_breakdown": True}
    plain, given = (deepspeed_config(make(**more), "bf16", 100) for more in ({}, {"deepspeed": block}))
    assert given == {**plain, ZERO: {**plain[ZERO], "stage3_max_live_parameters": 7}, "wall_clock_breakdown": True}


def test_a_name_that_deepspeed_would_pass_over_is_refused() -> None:
    ((path, reason),) = problems_with_settings({"wall_clock_breakdwon": True})
    assert path == ("wall_clock_breakdwon",)
    assert reason.endswith("did you mean wall_clock_breakdown?")


def test_every_name_is_one_that_deepspeed_reads() -> None:
    root = Path(deepspeed.runtime.__file__).parents[1]
    source = "\n".join(file.read_text(errors="ignore") for file in root.rglob("*.py") if "ops" not in file.parts)
    fields = zero_config.DeepSpeedZeroConfig.model_fields
    zero = {name for field, one in fields.items() for name in (field, one.alias) if name}
    for name in {*OWNED, *HARMLESS, *OTHERS}:
        section, _, key = name.partition(".")
        assert key in zero if key else re.search(rf"['\"]{section}['\"]", source), name


def test_what_changes_no_number_bears_no_identity(make: Callable[..., RunConfig]) -> None:
    def key(**block: Any) -> str:
        return run_key(Training(deepspeed=block), "m", "t")

    def state(**block: Any) -> str:
        return identity(make(deepspeed=block), 3)

    for of in (key, state):
        harmless = {"wall_clock_breakdown": True, ZERO: {"stage3_max_live_parameters": 7}}
        assert of(**harmless) == of()
        rounded = {ZERO: {"zero_quantized_weights": True}}
        assert of(**rounded) != of()
        assert of(**rounded) == of(**rounded, wandb={})
