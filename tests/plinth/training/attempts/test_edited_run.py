"""A run whose config.json was edited by hand: no job is submitted, no contract signed, and no rank starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import ResumeError
from plinth.launch.parameters import Launch
from plinth.operation import contracts
from plinth.storage.workspace import Workspace
from plinth.training import attempts, job
from plinth.training import config as configuration
from plinth.training.attempts import AttemptRecord
from plinth.training.config import RunConfig, identified_as_prepared
from plinth.training.parameters.optimizers import Optimizer
from tests.training_host import HOST

Make = Callable[..., RunConfig]


def start(config: RunConfig) -> AttemptRecord:
    """Start the ranks as their supervisor does: with the file that they will read."""
    data = configuration.write(config).read_bytes()
    return attempts.state(config.directory, data, config.key, ranks=2, nodes=1, hosts=[HOST], audit=False)


def edited(config: RunConfig, **changes: Any) -> RunConfig:
    return config.model_copy(update={"optimizer": Optimizer(lr=0.5), **changes})


def test_it_is_neither_submitted_nor_promised_nor_started(make: Make) -> None:
    own, ctx = edited(identified_as_prepared(make())), Context(Workspace(make().workspace).ensure())
    ways: list[Callable[[], object]] = [
        lambda: job.submit_or_find(ctx, own),
        lambda: contracts.draft(ctx, own, None, rank_hours=1.0),
        lambda: start(own),
    ]
    for way in ways:
        with pytest.raises(ResumeError, match="has other settings than when it was prepared") as raised:
            way()
        assert "plinth run" in str(raised.value.remedy)
    assert not own.directory.events.exists()
    assert attempts.known(own.directory) == []


def test_an_attempt_fixes_the_settings_of_those_after_it(make: Make) -> None:
    """Also against a user who changes the digest in the file, or removes it. What identifies no run may change."""
    prepared = identified_as_prepared(make())
    assert start(prepared).identity == prepared.identity == configuration.identity(make())
    for own in (identified_as_prepared(edited(prepared)), edited(prepared, identity="")):
        with pytest.raises(ResumeError, match="has other settings than attempt 1"):
            start(own)
    placed = prepared.model_copy(update={"launch": Launch(ranks=2), "identity": ""})
    assert (start(placed).number, start(placed).identity) == (2, prepared.identity)
    assert "identity" not in start(make(run_id="of-an-earlier-version")).model_dump()
