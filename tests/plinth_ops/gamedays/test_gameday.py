"""Every game day states what it must; deaths of the orchestrator and the scratch policy are what they say."""

from __future__ import annotations

from random import Random

import pytest

from plinth_ops.alerts.table import alerts
from plinth_ops.gamedays.gameday import TABLE, find
from plinth_ops.gamedays.orchestrator_day import _Death
from plinth_ops.gamedays.release_day import ASKED, GOOD, _policy, _recipe
from plinth_registry.gates.settings import always


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_game_day_states_what_it_must(name: str) -> None:
    found = find(name)
    assert found.name == name
    for stated in (found.hypothesis, found.fault, found.blast_radius, found.protection, found.abort):
        assert len(stated) > 20
    assert set(found.alerts) <= {one.name for one in alerts()}


def test_deaths_are_within_a_run_and_at_every_boundary() -> None:
    drawn = [_Death.drawn(Random(seed), 35, 12) for seed in range(2000)]
    assert {one.boundary for one in drawn if not one.name} == set(range(36))
    assert {one.boundary for one in drawn if one.name} == {0}
    assert all(2 <= one.step <= 10 for one in drawn)
    assert all(one.until == 0 or one.step < one.until <= 11 for one in drawn)
    assert {len(one.faults()) for one in drawn} == {1, 2, 3}


def test_the_first_policy_asks_only_what_none_leaves_out_and_the_proof_of_resume() -> None:
    assert set(_policy("gameday-0").asked) == {*always(), *ASKED}
    assert set(_recipe("gameday-0").corpus.buckets) > set(GOOD)
