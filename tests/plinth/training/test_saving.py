"""A save that is lost on one rank is made again by all, long before the next is due."""

from __future__ import annotations

from collections.abc import Callable

import owing
import pytest

from plinth.recipe.training import Checkpoints
from plinth.training import checkpoint
from plinth.training.config import RunConfig
from tests.ranks import run_ranks


@pytest.mark.slow
def test_a_lost_save_is_made_again_at_the_next_step(make: Callable[..., RunConfig]) -> None:
    config = make(checkpoints=Checkpoints(every_steps=99, audit_steps=1, keep_last=9, mode="sync"))
    first, second = run_ranks(2, owing.train, config, 1, 4)
    assert second == ["5 again", "11 as planned", "12 as planned"]
    assert [one.split()[0] for one in first] == ["5", "11", "12"]
    assert checkpoint.committed(config.directory) == [5, 11, 12]
