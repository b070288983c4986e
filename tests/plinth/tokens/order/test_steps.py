from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import MissingError, RecipeError
from plinth.tokens.order.steps import Amendment, BatchChange, LengthChange, StepRange, constant, schedule


def test_a_warm_up_by_hand() -> None:
    # S = 10. Four steps of 2 reach 80 tokens; two of 4 reach position 16; then 8 to a step, 3 left over.
    steps = schedule(
        35,
        10,
        2,
        (BatchChange(from_tokens=71, global_batch_sequences=4), BatchChange(from_step=7, global_batch_sequences=8)),
    )
    assert [steps.take(step) for step in range(steps.total)] == [
        (0, 2), (2, 2), (4, 2), (6, 2), (8, 4), (12, 4), (16, 8), (24, 8),
    ]  # fmt: skip
    assert (steps.total, steps.used, steps.batches) == (8, 32, (2, 4, 8))
    assert [steps.tokens_before(step) for step in (0, 4, 6, 8)] == [0, 80, 160, 320]
    assert steps.tokens(5) == 40
    assert steps.step_of(13) == (5, 1)
    assert steps.step_of(31) == (7, 7)
    assert steps.step_of(32) is None


def test_lengths_keep_the_tokens() -> None:
    steps = schedule(
        20, 64, 4, (), (LengthChange(from_tokens=0, sequence_tokens=16), LengthChange(from_step=3, sequence_tokens=64))
    )
    assert [steps.length(step) for step in range(5)] == [16, 16, 64, 64, 64]
    assert [steps.tokens(step) for step in range(5)] == [256] * 5
    assert [stretch.first_step for stretch in steps.stretches] == [0, 2]


def test_batch_and_length_change_together() -> None:
    steps = schedule(
        40, 8, 2, (BatchChange(from_step=3, global_batch_sequences=4),), (LengthChange(from_step=3, sequence_tokens=8),)
    )
    assert steps.stretches == (StepRange(0, 0, 2, 8), StepRange(2, 4, 4, 8))


def test_an_amendment_replaces_what_was_to_come() -> None:
    planned = (BatchChange(from_step=3, global_batch_sequences=4), BatchChange(from_step=9, global_batch_sequences=16))
    amended = (Amendment(from_step=5, global_batch_sequences=8, reason="unstable"),)
    before, after = schedule(100, 8, 2, planned), schedule(100, 8, 2, planned, (), amended)
    assert [after.batch(step) for step in (0, 2, 4, 9)] == [2, 4, 8, 8]
    assert before.through(4) == after.through(4) == [[0, 2, 8], [2, 4, 8]]
    assert before.through(5) != after.through(5)


def test_an_amendment_of_the_length_leaves_tokens_and_batches() -> None:
    grows = (BatchChange(from_step=9, global_batch_sequences=4),)
    planned = (LengthChange(from_step=1, sequence_tokens=8), LengthChange(from_step=12, sequence_tokens=32))
    amended = (Amendment(from_step=5, sequence_tokens=16, reason="spikes"),)
    before, after = schedule(100, 32, 2, grows, planned), schedule(100, 32, 2, grows, planned, amended)
    assert [after.length(step) for step in (0, 3, 4, 20)] == [8, 8, 16, 16]  # the length that was planned is gone
    assert [after.take(step) for step in range(after.total)] == [before.take(step) for step in range(before.total)]
    assert before.through(4) == after.through(4) == [[0, 2, 8]]
    assert after.through(20) == [[0, 2, 8], [4, 2, 16], [8, 4, 16]]
    both = (Amendment(from_step=5, global_batch_sequences=8, sequence_tokens=16, reason="both"),)
    assert schedule(100, 32, 2, grows, planned, both).through(20) == [[0, 2, 8], [4, 8, 16]]


@given(
    sequences=st.integers(1, 400),
    batch=st.integers(1, 9),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 3000), st.integers(1, 30)), max_size=5),
)
def test_steps_tile_the_order(sequences: int, batch: int, changes: list[tuple[bool, int, int]]) -> None:
    made = tuple(
        BatchChange(from_tokens=point, global_batch_sequences=size)
        if by_tokens
        else BatchChange(from_step=point // 40 + 1, global_batch_sequences=size)
        for by_tokens, point, size in changes
    )
    try:
        steps = schedule(sequences, 8, batch, made)
    except RecipeError:
        return
    at = 0
    for step in range(steps.total):
        first, count = steps.take(step)
        assert first == at
        assert steps.tokens_before(step) == at * 8
        assert steps.step_of(at) == (step, 0)
        assert steps.step_of(at + count - 1) == (step, count - 1)
        at += count
    assert steps.used == at <= sequences
    assert sequences - at < steps.stretches[-1].batch
    assert all(steps.step_of(position) is None for position in range(at, sequences))
    for change in made:  # each holds from the first step at or after its point, not one sooner
        begins = [s for s in steps.stretches if s.batch == change.global_batch_sequences]
        point = change.from_tokens
        assert point is None or any(s.first_position * 8 >= point for s in begins)


@pytest.mark.parametrize(
    "changes",
    [
        (BatchChange(from_step=5, global_batch_sequences=4), BatchChange(from_step=5, global_batch_sequences=8)),
        (BatchChange(from_step=5, global_batch_sequences=4), BatchChange(from_tokens=8, global_batch_sequences=8)),
        (BatchChange(from_step=500, global_batch_sequences=4),),
        (BatchChange(from_tokens=10**6, global_batch_sequences=4),),
    ],
    ids=["twice", "backwards", "after the last step", "after the last token"],
)  # fmt: skip
def test_changes_without_a_place_are_refused(changes: tuple[BatchChange, ...]) -> None:
    with pytest.raises(RecipeError, match="cannot be applied"):
        schedule(100, 8, 2, changes)


@pytest.mark.parametrize("step", [-1, 25, 10**9])
def test_steps_outside_the_run_are_named(step: int) -> None:
    with pytest.raises(MissingError, match="no step"):
        constant(100, 8, 4).take(step)


@pytest.mark.parametrize("position", [-1, 100])
def test_positions_outside_the_order_are_named(position: int) -> None:
    steps = constant(100, 8, 4)
    assert (steps.step_of(0), steps.step_of(99)) == ((0, 0), (24, 3))
    with pytest.raises(MissingError, match=f"position {position}"):
        steps.step_of(position)


def test_a_change_needs_one_whole_step_after_it() -> None:
    """Eight steps of 2 leave 4 of 20 sequences."""
    assert schedule(20, 8, 2, (BatchChange(from_step=9, global_batch_sequences=4),)).take(8) == (16, 4)
    with pytest.raises(RecipeError, match="cannot be applied"):
        schedule(20, 8, 2, (BatchChange(from_step=9, global_batch_sequences=5),))
