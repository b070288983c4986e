"""From findings to interventions: confirmation, windows, bounds, and a state that survives."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.training.guard.rules import Intervention, TrainedStep
from plinth.training.guard.state_machine import LAG, Guard
from plinth.training.parameters.guard import GradientSpike, LayerRule, LossSpike, Nonfinite
from plinth.training.parameters.guard import GuardParameters as Policy

CALM = 12


def policy(**changes: Any) -> Policy:
    return Policy(**{"window_steps": 16, "min_steps": 8, **changes})


def see(guard: Guard, step: int, loss: float, norm: float = 1.0, **more: Any) -> list[Intervention]:
    """One step as the loop would: vetoed when it is above what the guard allows."""
    limit = guard.update_limits(step)
    vetoed = not (math.isfinite(loss) and math.isfinite(norm)) or loss > limit.loss or norm > limit.grad_norm
    return guard.record(TrainedStep(step=step, loss=loss, grad_norm=norm, vetoed=vetoed, **more))


def calm(guard: Guard, steps: int = CALM, first: int = 1) -> None:
    for step in range(first, first + steps):
        assert see(guard, step, 2.0 + 0.01 * (step % 3), 1.0 + 0.01 * (step % 2)) == []


def test_a_spike_is_rolled_back_when_it_is_confirmed() -> None:
    guard = Guard(policy(skip_before=1, skip_after=2))
    calm(guard)
    assert see(guard, 13, 9.0) == []
    (made,) = see(guard, 14, 8.0)
    assert (made.action, made.rule, made.value, made.first, made.last, made.number) == (
        "rollback",
        "loss_spike",
        8.0,
        12,
        16,
        1,
    )


def test_one_bad_step_is_nothing() -> None:
    guard = Guard(policy())
    calm(guard)
    assert see(guard, 13, 9.0) == []
    calm(guard, first=14)


def test_the_window_begins_where_any_rule_first_saw_something() -> None:
    """Gradients spike before the loss does (OLMo 2)."""
    guard = Guard(policy())
    calm(guard)
    assert see(guard, 13, 2.0, 50.0) == []
    assert [one.rule for one in see(guard, 14, 9.0, 50.0)] == ["gradient_spike"]  # a warning by default
    made = see(guard, 15, 9.0, 50.0)
    assert [(one.action, one.first, one.last) for one in made] == [("rollback", 13, 15)]


def test_nothing_is_judged_before_enough_was_seen() -> None:
    guard = Guard(policy())
    assert [see(guard, step, loss) for step, loss in enumerate([11.0, 2.0, 9.0, 9.0, 9.0, 2.0], 1)] == [[]] * 6


def test_not_finite_is_rolled_back_at_once_from_the_first_step() -> None:
    (made,) = see(Guard(policy()), 1, math.nan)
    assert (made.action, made.first, made.last) == ("rollback", 1, 1)


def test_steps_after_a_window_are_on_probation() -> None:
    """The window ends where the guard was sure; steps that are still bad after it are skipped and do not start a second
    rollback; the first good steps end the probation."""
    guard = Guard(policy())
    calm(guard)
    saved = json.loads(json.dumps(guard.state()))
    see(guard, 13, 9.0)
    (made,) = see(guard, 14, 9.0)
    again = Guard.restored(policy(), saved)
    again.set_rollbacks([made])
    assert [again.leaves_out(step) is not None for step in (12, 13, 14, 15)] == [False, True, True, False]
    for step in (15, 16, 17):
        (skip,) = see(again, step, 9.0)
        assert (skip.action, skip.step, skip.reason) == ("skip", step, "just after a window")
    calm(again, 4, first=18)
    assert math.isinf(again.update_limits(22).loss)
    assert [one.action for one in (see(again, 22, 9.0), see(again, 23, 9.0))[1]] == ["rollback"]


def rolled_back(first: int, last: int) -> Intervention:
    return Intervention(
        step=last, rule="loss_spike", action="rollback", value=9.0, threshold=2.2, first=first, last=last
    )


def limited(guard: Guard, step: int) -> tuple[bool, bool]:
    """Return whether an update may be skipped for its loss, and for its gradient."""
    limit = guard.update_limits(step)
    return math.isfinite(limit.loss), math.isfinite(limit.grad_norm)


def test_probation_ends_when_two_steps_are_known_to_have_passed() -> None:
    """The outcome of a step is known two steps later."""
    guard = Guard(policy())
    calm(guard)
    guard.set_rollbacks([rolled_back(13, 14)])
    assert [limited(guard, step)[0] for step in (14, 15, 16, 17, 18)] == [False, True, True, True, False]
    assert [one.action for one in see(guard, 16, 9.0)] == ["skip"]
    assert [limited(guard, step)[0] for step in (17, 18, 19, 20)] == [True, True, True, False]


@pytest.mark.parametrize(("held", "expected"), [(0, [False, False]), (20, [True, True]), ([18], [True, True])])
def test_probation_of_an_earlier_checkpoint_goes_on(held: Any, expected: list[bool]) -> None:
    guard = Guard(policy())
    calm(guard, 19)
    again = Guard.restored(policy(), {**guard.state(), "probation": held})
    assert [limited(again, step)[0] for step in (20, 21, 22)] == [*expected, False]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([2.0, 2.01, 2.02, 9.0, 30.0]), min_size=20, max_size=60),
    st.sampled_from(["skip", "lower_lr", "rollback"]),
)
def test_limits_on_the_device_are_those_of_the_host_however_many_steps_are_in_flight(
    losses: list[float], action: Any
) -> None:
    """A step launched while the one before it is not recorded yet meets the same limits, is trained at the same rate
    and judged alike; left out are the same steps."""

    def train(lag: int) -> list[Any]:
        guard = Guard(policy(min_steps=4, window_steps=8, loss_spike=LossSpike(action=action, confirmations=1)))
        guard.set_rollbacks([rolled_back(14, 15)])
        found: list[Any] = []
        flying: list[tuple[int, bool]] = []

        def read() -> None:
            step, vetoed = flying.pop(0)
            made = guard.record(TrainedStep(step=step, loss=losses[step - 1], grad_norm=1.0, vetoed=vetoed))
            found.append((step, vetoed, [(one.action, one.threshold) for one in made]))

        for step in range(1, len(losses) + 1):
            launched = guard.leaves_out(step) is None
            if launched:
                limit = guard.update_limits(step, len(flying))
                found.append((step, limit, guard.factor(step)))
                flying.append((step, losses[step - 1] > limit.loss))
            while len(flying) > (lag if launched else 0):
                read()
        while flying:
            read()
        return sorted(found, key=lambda row: (row[0], len(str(row))))

    assert train(1) == train(0)


@pytest.mark.parametrize(
    ("action", "always", "on_probation"),
    [
        ("off", (False, False), (False, False)),
        ("warn", (False, False), (True, False)),
        ("skip", (True, True), (True, True)),
        ("lower_lr", (False, False), (True, False)),
        ("rollback", (False, False), (True, True)),
        ("stop", (False, False), (True, False)),
    ],
)
def test_what_keeps_an_update_back(action: Any, always: tuple[bool, bool], on_probation: tuple[bool, bool]) -> None:
    guard = Guard(policy(loss_spike=LossSpike(action=action), gradient_spike=GradientSpike(action=action)))
    calm(guard)
    assert limited(guard, 13) == always
    guard.set_rollbacks([rolled_back(13, 14)])
    assert limited(guard, 15) == on_probation


@pytest.mark.parametrize(("again", "action"), [(28, "stop"), (29, "skip")])
def test_a_veto_counts_for_the_steps_of_the_window(again: int, action: str) -> None:
    guard = Guard(policy(window_steps=16, loss_spike=LossSpike(action="skip"), max_skipped_updates=1))
    calm(guard)
    assert [one.action for one in see(guard, 13, 9.0)] == ["skip"]
    calm(guard, again - 14, first=14)
    assert [one.action for one in see(guard, again, 9.0)] == [action]


def test_skipping_keeps_updates_back_at_first_sight_and_within_bounds() -> None:
    guard = Guard(policy(loss_spike=LossSpike(action="skip"), max_skipped_updates=2))
    calm(guard)
    assert [see(guard, step, 9.0)[0].action for step in (13, 14, 15)] == ["skip", "skip", "stop"]


def test_bad_data_without_end_does_not_become_the_level_it_is_judged_by() -> None:
    guard = Guard(policy(window_steps=16, min_steps=8, loss_spike=LossSpike(action="skip"), max_skipped_updates=100))
    calm(guard)
    before = guard.update_limits(CALM + 1).loss
    for step in range(CALM + 1, CALM + 60):
        see(guard, step, 9.0)
    assert guard.update_limits(CALM + 61).loss <= before


def test_lower_rate_counts_from_two_steps_later_and_ends() -> None:
    guard = Guard(policy(loss_spike=LossSpike(action="lower_lr", confirmations=1), lr_factor=0.5, lr_steps=3))
    calm(guard)
    (made,) = see(guard, 13, 9.0)
    assert (made.action, made.factor) == ("lower_lr", 0.5)
    assert [guard.factor(step) for step in range(13, 20)] == [1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_a_rollback_can_lower_the_rate_after_its_window() -> None:
    guard = Guard(policy(rollback_lr_factor=0.25))
    calm(guard)
    see(guard, 13, 9.0)
    made = see(guard, 14, 9.0)
    guard.set_rollbacks(made)
    assert [guard.factor(step) for step in (12, 13, 14, 15, 99)] == [1.0, 1.0, 1.0, 0.25, 0.25]


def test_interventions_are_bounded() -> None:
    guard = Guard(policy(nonfinite=Nonfinite(action="rollback"), max_rollbacks=1))
    guard.set_rollbacks(see(guard, 5, math.nan))
    (made,) = see(guard, 9, math.nan)
    assert made.action == "stop"
    assert "as often as allowed (1)" in made.reason


def test_the_hardest_action_is_taken_and_others_are_not() -> None:
    both = policy(
        loss_spike=LossSpike(action="lower_lr", confirmations=1),
        gradient_spike=GradientSpike(action="stop", confirmations=1),
    )
    guard = Guard(both)
    calm(guard)
    assert [one.action for one in see(guard, 13, 9.0, 50.0)] == ["stop"]
    assert guard.lowered == []


def test_activations_of_a_layer_are_confirmed_over_measurements() -> None:
    """Steps between two measurements neither confirm nor end anything."""
    guard = Guard(policy(activations=LayerRule(action="stop", confirmations=2)))
    for step in range(1, 20, 4):
        assert see(guard, step, 2.0, activations={"0": 1.0, "1": 1.0}) == []
    assert see(guard, 20, 2.0, activations={"0": 1.0, "1": 11.0}) == []
    assert see(guard, 21, 2.0) == []
    (made,) = see(guard, 24, 2.0, activations={"0": 1.0, "1": 12.0})
    assert (made.action, made.rule, made.layer) == ("stop", "activations", "1")


def test_disabled_sees_nothing() -> None:
    guard = Guard(policy(enabled=False))
    assert see(guard, 1, math.nan) == []
    assert math.isinf(guard.update_limits(2).loss)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 59))
def test_a_restored_guard_decides_as_the_one_that_was_saved(seed: int, at: int) -> None:
    """Whatever was seen before, whatever comes after, through JSON and back."""
    rules = policy(
        loss_spike=LossSpike(action="lower_lr", confirmations=2),
        gradient_spike=GradientSpike(action="skip"),
        activations=LayerRule(action="warn"),
    )
    chooser, guard = random.Random(seed), Guard(rules)
    copy: Guard | None = None
    for step in range(1, 60):
        if step == at:
            copy = Guard.restored(rules, json.loads(json.dumps(guard.state())))
        loss = chooser.choice([2.0, 2.1, 2.2, 9.0, math.nan] if chooser.random() < 0.2 else [2.0, 2.1, 2.2])
        norm = chooser.choice([1.0, 1.1, 40.0] if chooser.random() < 0.2 else [1.0, 1.1])
        measured = {"activations": {"0": chooser.choice([1.0, 30.0])}} if step % 5 == 0 else {}
        made = see(guard, step, loss, norm, **measured)
        if copy is not None:
            assert repr(see(copy, step, loss, norm, **measured)) == repr(made)
            assert (copy.factor(step + LAG), copy.update_limits(step + 1)) == (
                guard.factor(step + LAG),
                guard.update_limits(step + 1),
            )
    assert copy is not None
    assert json.dumps(copy.state()) == json.dumps(guard.state())


def test_limits_come_two_steps_late_so_that_a_gpu_may_read_one_step_late() -> None:
    guard = Guard(policy(loss_spike=LossSpike(action="skip")))
    for step in range(1, 9):
        see(guard, step, 2.0)
    assert math.isinf(guard.update_limits(9).loss)  # computed from the values known before step 8 was read
    see(guard, 9, 2.0)
    assert guard.update_limits(10).loss == pytest.approx(2.2)
