"""Features that a CPU does not support are refused with their name, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plinth.errors import TrainingError
from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from tests.ranks import RankFailed, run_ranks


def open_only(config: RunConfig) -> None:
    from plinth.training.engine import engine
    from plinth.training.engine.pipeline import open_engine

    open_engine(config, engine.join(config))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fp32_matmul": "tf32"}, "training.fp32_matmul tf32 cannot run on this cpu"),
        ({"float8": "rowwise"}, "training.float8 rowwise cannot run on this cpu"),
        ({"parallel": Parallel(attention="flex")}, "attention: flex` cannot be used for training on this CPU"),
    ],
)
def test_what_the_cpu_lacks_is_refused(make: Callable[..., RunConfig], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RankFailed) as failed:
        run_ranks(1, open_only, make(launch=Launch(ranks=1), **changes))
    assert isinstance(failed.value.error, TrainingError)
    assert says in str(failed.value.error)


def test_settings_of_before_bear_the_same_identity() -> None:
    from plinth.training.config import run_key
    from plinth.training.parameters.run import Training

    plain = run_key(Training(), "m", "t")
    assert run_key(Training(parallel=Parallel(attention="sdpa")), "m", "t") == plain
    assert run_key(Training(fp32_matmul="tf32"), "m", "t") != plain
    assert run_key(Training(deterministic=False), "m", "t") != plain
    assert not {"fp32_matmul", "deterministic", "float8"} & set(Training().model_dump(mode="json"))
