"""Traces of chosen steps: asked of a run under way, taken on the ranks named, in a form that Perfetto opens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import MissingError
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Telemetry, Training
from plinth.training.telemetry import profiler as profile_request
from plinth.training.telemetry.timeline import Timeline, timeline
from tests.ranks import run_ranks


def profiled(config: RunConfig, ask_at: int) -> None:
    """Train; after reading a step, another process asks for steps 6 and 7 of rank 1, and for steps that are past."""
    from plinth.training.engine import engine
    from plinth.training.loop import TrainingRun
    from plinth.training.telemetry import profiler

    profiler.LOOK_S = 0.0
    rank = engine.join(config)
    run = TrainingRun(config, rank)
    emit = run._emit_step

    def asking(measured: Any) -> None:
        emit(measured)
        if rank.leads and measured.step == ask_at:
            profile_request.submit(config, ask_at, 6, 7, (1,))
            profile_request.submit(config, ask_at, ask_at + 1, ask_at + 1)  # ranks learn of it too late

    run._emit_step = asking  # type: ignore[method-assign]
    run.resume(0)
    run.run(0)
    run.saver.drain()
    run.saver.close()
    engine.leave()


def steps_in(path: Path) -> list[str]:
    """The steps of a trace whose form is that of Chrome: complete events with begin and length in microseconds."""
    with gzip.open(path) as stream:
        trace = json.load(stream)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all({"name", "pid", "tid", "ts", "dur"} <= set(event) and event["dur"] >= 0 for event in complete)
    assert any(event["name"] == "aten::mm" for event in complete)  # what the model computes
    return sorted(event["name"] for event in complete if event["name"].startswith("step "))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_traces_the_steps_that_it_is_asked_for(make: Any) -> None:
    config = make(telemetry=Telemetry(profile_steps=(2, 2)))
    run_ranks(2, profiled, config, 3)
    events = timeline(config.directory.events).of("profiled")
    folder = config.directory.profiles
    traces = ["0000-steps-2-2-rank-0000.json.gz", "0001-steps-6-7-rank-0001.json.gz"]
    assert sorted(path.name for path in folder.glob("*.gz")) == traces
    assert [steps_in(folder / name) for name in traces] == [["step 2"], ["step 6", "step 7"]]
    assert [(e["step"], e["number"], e["files"]) for e in events] == [
        (2, 0, [f"profiles/{traces[0]}"]),
        (5, 2, []),  # step 4 was taken
        (7, 1, [f"profiles/{traces[1]}"]),
    ]
    history = timeline(config.directory.events)
    assert [step for step, one in history.steps.items() if "profile" in one.get("besides", {})]


def test_steps_that_are_taken_cannot_be_traced(make: Any) -> None:
    config = make()
    for step in (1, 2, 3):
        Timeline(config.directory.events).append("step", step=step)
    with pytest.raises(MissingError, match=r"3 of \d+ steps done") as raised:
        profile_request.submit(config, 3, 3, 5)
    assert "steps from 4 on" in str(raised.value)
    for steps, ranks in (((4, 13), (0,)), ((5, 4), (0,)), ((4, 4), (2,))):
        with pytest.raises(MissingError):
            profile_request.submit(config, 3, *steps, ranks)
    assert profile_request.submit(config, 3, 4, 4).number == 1
    assert profile_request.submit(config, 3, 5, 9, (0, 1)).number == 2
    found = profile_request.load(config, 2)
    assert found is not None
    assert (found.first, found.last, found.ranks) == (5, 9, (0, 1))
    assert profile_request.load(config, 0) is profile_request.load(config, 3) is None


def test_a_recipe_names_steps_in_their_order() -> None:
    given = {"telemetry": {"stragglers_every": 20, "profile_steps": [100, 103]}}
    assert Training.model_validate_json(json.dumps(given), strict=True).telemetry.profile_steps == (100, 103)
    with pytest.raises(ValueError, match="expected the first step"):
        Telemetry(profile_steps=(103, 100))
