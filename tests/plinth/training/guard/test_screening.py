"""Rules over the text of a batch: what they find, that it is the same however a batch is divided, and what follows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.errors import RecipeError
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.training.data import Examination, StepBatch, examined
from plinth.training.guard import rules
from plinth.training.guard.rules import NONE_BROKEN, Intervention, TrainedStep
from plinth.training.guard.state_machine import Guard
from plinth.training.parallel.topology import RankPlace
from plinth.training.parameters.guard import BatchScreening, GuardParameters, LossSpike
from plinth.training.parameters.run import Training
from tests.plinth.training.conftest import tiny

POLICY = BatchScreening(duplicate_ngrams=0.5, top_ngram=0.4, entropy=2.0, streams=("web/language=x*",))
ORDERLY, BORING, FLAT = list(range(33)), [5] * 33, [1, 2] * 16 + [1]


def test_each_rule_by_its_bound() -> None:
    rows = CompactBatch.of(np.array([ORDERLY, BORING, FLAT], "<u2"))
    streams = ["web/language=en", "web/language=xx", "code"]
    assert rules.count_broken(POLICY, rows, streams) == (2, 2, 2, 1)
    assert rules.count_broken(POLICY, rows) == (2, 2, 2, 0)  # a source without streams
    assert rules.count_broken(BatchScreening(entropy=0.0), rows, streams) == NONE_BROKEN
    assert rules.count_broken(BatchScreening(entropy=0.0), rows) == NONE_BROKEN  # at the bound is not below it
    assert rules.broken_rows(POLICY, rows, streams, "entropy") == [(1, 0.0), (2, pytest.approx(0.9993, abs=1e-4))]
    assert [row for row, _ in rules.broken_rows(POLICY, rows, streams, "streams")] == [1]


def test_a_recipe_lists_streams_and_names_a_bound() -> None:
    """As the loader reads it: from JSON, strictly."""
    given = {"guard": {"screening": {"streams": ["web/*"]}}}
    screened = Training.model_validate_json(json.dumps(given), strict=True).guard.screening
    assert screened == BatchScreening(streams=("web/*",))
    with pytest.raises(ValueError, match="screening has no rule"):
        BatchScreening(rows=0.1)


@pytest.mark.parametrize(("broken", "found"), [(2, []), (3, ["entropy"])])
def test_a_batch_is_suspicious_above_its_share_of_rows(broken: int, found: list[str]) -> None:
    policy = BatchScreening(entropy=2.0, rows=0.25)
    made = rules.findings(policy, (0, 0, broken, 0), 8)
    assert [one.rule for one in made] == found
    assert (broken > rules.limit_of(policy, 8)) == bool(found)  # the device decides as the host does
    for one in made:
        assert (one.value, one.threshold, one.bound) == (0.375, 0.25, 2.0)
    assert math.isinf(rules.limit_of(BatchScreening(entropy=2.0, action="warn"), 8))
    assert math.isinf(rules.limit_of(None, 8))


def test_a_stream_that_the_run_does_not_read_is_refused() -> None:
    rules.require_streams(POLICY, ["code", "web/language=xh"])
    with pytest.raises(RecipeError, match="matches no stream of the run") as refused:
        rules.require_streams(POLICY, ["code", "web/language=en"])
    assert "web/language=x*" in str(refused.value)


def test_sums_are_the_same_however_a_batch_is_divided(tmp_path: Path) -> None:
    config = tiny(tmp_path, guard=GuardParameters(screening=POLICY))
    random = np.random.default_rng(1)
    rows = np.stack([random.choice([ORDERLY, BORING, FLAT]) for _ in range(16)]).astype("<u2")
    sums = set()
    for ranks, micro in ((1, 16), (1, 2), (2, 4), (4, 1), (8, 2)):
        each = rows.reshape(ranks, -1, micro, 33)
        found = [examined(StepBatch.of(own), config, RankPlace(n, 0, 0, 0)) for n, own in enumerate(each)]
        words = np.sum([one.words for one in found], axis=0) % 2**32
        sums.add((tuple(words.tolist()), tuple(np.sum([one.broken for one in found], axis=0).tolist())))
    assert len(sums) == 1
    ((_, broken),) = sums
    assert broken[0] == int((rows[:, 0] != 0).sum()) > 0


def test_streams_follow_their_rows_and_a_batch_is_examined_once(tmp_path: Path) -> None:
    config = tiny(tmp_path, guard=GuardParameters(screening=BatchScreening(streams=("b",))))
    batch, place = StepBatch.of(np.zeros((2, 3, 33), "<u2")), RankPlace(0, 0, 0, 0)
    first = examined(batch, config, place, ["a", "a", "a", "a", "b", "b"])
    assert first.broken == (0, 0, 0, 2)
    assert examined(replace(batch, examination=first), config, place) is first
    other = RankPlace(0, 0, 0, 1)  # sees the rows of another
    assert examined(replace(batch, examination=first), config, other) == Examination((0, 0), NONE_BROKEN)
    off = tiny(tmp_path, guard=GuardParameters(enabled=False, screening=BatchScreening(streams=("b",))))
    assert examined(batch, off, place, ["b"] * 6).broken == NONE_BROKEN


def _guard(action: str = "skip", **changes: Any) -> Guard:
    chosen: Any = BatchScreening(entropy=2.0, action=action)
    return Guard(GuardParameters(window_steps=16, min_steps=8, screening=chosen, **changes))


def _see(guard: Guard, step: int, loss: float, broken: int = 0) -> list[Intervention]:
    """One step as the loop would."""
    assert guard.policy.screening is not None
    limit = guard.update_limits(step, 0, 8)
    vetoed = loss > limit.loss or broken > limit.rows
    found = rules.findings(guard.policy.screening, (0, 0, broken, 0), 8)
    return guard.record(TrainedStep(step=step, loss=loss, grad_norm=1.0, vetoed=vetoed, screened=found))


def _calm(guard: Guard) -> None:
    for step in range(1, 13):
        assert _see(guard, step, 2.0 + 0.01 * (step % 3)) == []


def test_a_batch_that_is_kept_back_confirms_no_spike_and_becomes_no_level() -> None:
    guard, without = _guard(), _guard()
    _calm(guard)
    _calm(without)
    before = guard.state()
    for step in (13, 14, 15):  # a loss of 9 three times in a row would be rolled back
        (made,) = _see(guard, step, 9.0, 3)
        assert (made.action, made.rule, made.value, made.threshold, made.bound, made.number) == (
            "skip", "entropy", 0.375, 0.25, 2.0, step - 12,
        )  # fmt: skip
        assert (made.first, made.last) == (step, step)
    assert {**guard.state(), "vetoed": [], "ahead": []} == {**before, "vetoed": [], "ahead": []}
    assert [one.action for one in (_see(guard, 16, 9.0), _see(guard, 17, 9.0))[1]] == ["rollback"]  # trained ones do


def test_it_neither_confirms_nor_ends_a_streak() -> None:
    guard = _guard()
    _calm(guard)
    assert _see(guard, 13, 9.0) == []
    assert [one.rule for one in _see(guard, 14, 9.0, 8)] == ["entropy"]
    (made,) = _see(guard, 15, 9.0)
    assert (made.action, made.rule, made.first, made.last) == ("rollback", "loss_spike", 13, 15)


def test_the_bound_on_updates_that_are_not_made_holds() -> None:
    guard = _guard(max_skipped_updates=2)
    _calm(guard)
    actions = [[one.action for one in _see(guard, step, 2.0, 8)] for step in (13, 14, 15)]
    assert actions == [["skip"], ["skip"], ["stop"]]


def test_a_warning_comes_once_and_trains_on() -> None:
    guard = _guard("warn")
    _calm(guard)
    made = [_see(guard, step, 2.0, 8) for step in (13, 14)]
    assert [[one.action for one in each] for each in made] == [["warn"], []]
    assert [_see(guard, 15, 9.0, 8), [one.action for one in _see(guard, 16, 9.0, 8)]] == [[], ["rollback"]]
    assert guard.state()["vetoed"] == []


def test_a_warning_does_not_widen_a_window() -> None:
    guard = _guard("warn")
    _calm(guard)
    _see(guard, 13, 2.0, 8)
    _see(guard, 14, 9.0, 8)
    (made,) = [one for one in _see(guard, 15, 9.0, 8) if one.action == "rollback"]
    assert (made.first, made.last) == (14, 15)


def test_stop_keeps_the_update_back_and_ends_the_run() -> None:
    guard = _guard("stop")
    _calm(guard)
    assert guard.update_limits(13, 0, 8).rows == 2.0
    assert [one.action for one in _see(guard, 13, 9.0, 8)] == ["stop"]


def test_off_a_policy_is_none_and_a_guard_off_judges_nothing() -> None:
    assert GuardParameters().screening is None
    assert math.isinf(Guard(GuardParameters()).update_limits(1, 0, 8).rows)
    assert math.isinf(_guard(enabled=False).update_limits(1, 0, 8).rows)


def test_an_intervention_survives_the_timeline_and_the_state() -> None:
    guard = _guard(loss_spike=LossSpike(action="skip"))
    _calm(guard)
    (made,) = _see(guard, 13, 9.0, 8)
    assert Intervention.of(json.loads(json.dumps(made.event()))) == made
    again = Guard.restored(guard.policy, json.loads(json.dumps(guard.state())))
    for step in (14, 15):
        assert _see(again, step, 9.0, step % 2 * 8) == _see(guard, step, 9.0, step % 2 * 8) != []
