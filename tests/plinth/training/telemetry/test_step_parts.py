"""The mean step: parts add up to the wall clock between steps that follow each other, and to nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import MissingError
from plinth.training.telemetry.step_clock import BESIDES, PARTS, mean_step

SECONDS = st.floats(0.001, 10)


def step(number: int, time: float, parts: dict[str, float], **besides: float) -> dict[str, Any]:
    return {"event": "step", "time": time, "step": number, "parts": parts, "besides": besides}


def test_only_steps_that_follow_each_other_count() -> None:
    found = mean_step(
        [
            {"event": "run_started", "time": 0.0, "device": "cpu", "precision": "fp32"},
            step(1, 9.0, {"forward": 5.0}),  # compiles
            step(2, 10.0, {"data": 0.25, "forward": 0.25, "backward": 0.5}),
            {"event": "evaluated", "time": 14.0, "seconds": 4.0},
            step(3, 17.0, {"data": 0.25, "communication": 0.75, "checkpoint": 0.5}, evaluation=4.0, save=1.5),
            {"event": "stragglers", "time": 17.0, "ranks": [{"rank": 3}]},
            {"event": "restart", "time": 20.0},
            {"event": "run_started", "time": 30.0, "device": "cuda", "precision": "bf16"},
            {"event": "resumed", "time": 31.0},
            step(3, 40.0, {"forward": 9.0}),
            step(4, 41.0, {"host": 1.0}),
            {"event": "rolled_back", "time": 50.0},
            step(4, 60.0, {"forward": 1.0}, loading=9.0),
        ]
    )
    assert found.steps == (2, 3, 4)
    assert found.seconds == pytest.approx(
        {"compute": 0.25, "communication": 0.25, "input": 0.5 / 3, "checkpoint": 2 / 3, "host": 1 / 3}
    )
    assert found.wall_s == pytest.approx((1 + 3 + 1) / 3)
    assert found.unaccounted == pytest.approx(0, abs=1e-12)
    assert (found.device, found.precision) == ("cuda", "bf16")
    assert [one.words() for one in found.slow_ranks] == ["rank 3 is slow (own time 0 s per step)"]
    assert found.waited_s == 0  # events of earlier versions record no delay


def test_time_that_no_part_has_is_said() -> None:
    found = mean_step([step(1, 0.0, {"forward": 1.0}), step(2, 2.0, {"forward": 1.0})])
    assert found.unaccounted == 0.5


@pytest.mark.parametrize(
    "events",
    [[], [step(1, 1.0, {"forward": 1.0})], [{"event": "step", "time": float(i), "step": i} for i in range(3)]],
)
def test_without_two_steps_there_is_none(events: list[dict[str, Any]]) -> None:
    with pytest.raises(MissingError):
        mean_step(events)


def straggling(number: int, time: float, over: int, **own: dict[str, float]) -> dict[str, Any]:
    """Ranks by `r1` and so on, with the parts of their own time."""
    ranks = [
        {"rank": int(name[1:]), "host": "node-a", "own_s": sum(parts.values()), "parts": parts}
        for name, parts in own.items()
    ]
    return {"event": "stragglers", "time": time, "step": number, "ranks": ranks, "over_steps": over}


def test_waiting_for_a_slower_rank_is_told_from_communication() -> None:
    """Steps 3 to 6 wait for rank 1, which takes 2 s by itself where rank 0 takes 0.5; 7 and 8 do not any more."""
    quick, waiting = {"forward": 0.5, "communication": 0.25}, {"data": 0.1, "forward": 0.4, "communication": 2.0}
    slow = {"input": 1.6, "host": 0.0, "compute": 0.4}
    events = [step(1, 1.0, quick), step(2, 2.0, quick)]
    events += [step(number, number * 3.0, waiting) for number in (3, 4, 5, 6)]
    events.insert(4, straggling(5, 12.0, 2, r1=slow))
    found = mean_step(events)
    assert found.seconds["communication"] == pytest.approx((0.25 + 4 * 2.0) / 5)
    assert found.waited_s == pytest.approx(4 * 1.5 / 5)  # 0.5 of each 2.0 is not the other rank's
    (one,) = found.slow_ranks
    assert one.words() == (
        f"rank 1 on node-a is slow (own time 2 s per step): input 1.6 s, rank 0 {found.seconds['input']:.4g} s"
    )
    later = [*events, straggling(9, 24.0, 2), step(7, 20.0, waiting), step(8, 23.0, waiting)]
    again = mean_step(later)
    assert again.slow_ranks == ()
    assert again.waited_s == pytest.approx(4 * 1.5 / 7)
    own = mean_step([*events, straggling(7, 20.0, 1, r0={"input": 0.1, "host": 0.0, "compute": 0.4})])
    assert own.slow_ranks[0].words() == "rank 0 on node-a is slow (own time 0.5 s per step): compute 0.4 s"


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(PARTS), SECONDS, min_size=1),
            st.dictionaries(st.sampled_from(BESIDES), SECONDS, max_size=2),
        ),
        min_size=2,
        max_size=20,
    )
)
def test_parts_of_any_timeline_are_the_wall_clock(steps: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    now, events = 0.0, []
    for number, (parts, besides) in enumerate(steps, 1):
        now += sum(parts.values()) + sum(besides.values())
        events.append(step(number, now, parts, **besides))
    found = mean_step(events)
    assert found.seconds_together == pytest.approx(found.wall_s)
