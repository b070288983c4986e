"""`plinth run history | show`: all runs, and the steps of a run without hiding a spike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth_jobs.cli.run_facts import _line, peaks
from tests.plinth_ops.service_levels.test_command import trained


def steps(*losses: float | str) -> list[dict[str, Any]]:
    return [{"step": number, "loss": loss} for number, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "rows", "kept"),
    [
        ((3.0, 2.0, 9.0, 1.0), 2, [1, 3]),
        ((3.0, 2.0, 1.0), 9, [1, 2, 3]),
        ((1.0, 2.0, 3.0, 4.0, 5.0), 2, [3, 5]),
        ((1.0, "nan", 3.0, "inf"), 1, [2]),
        ((), 3, []),
    ],
)
def test_each_row_is_the_highest_loss_of_its_group(losses: Any, rows: int, kept: list[int]) -> None:
    assert [step["step"] for step in peaks(steps(*losses), rows)] == kept


def write(workspace: Path, run: str, losses: list[float]) -> None:
    """Replace the timeline of a run, which starts at its number of thousands of seconds."""
    events = [{"event": "job_started", "ranks": 1, "nodes": 1}]
    events += [
        {"event": "step", "step": n, "loss": loss, "tokens": 8 * n, "step_s": 0.5} for n, loss in enumerate(losses, 1)
    ]
    restart = {"attempt": 2, "reason": "rank 1 was killed", "backoff_s": 0.0, "from_step": 2, "lost_s": 1.25}
    restart |= {"layers": [0.5], "hosts": [{"node": 0, "disk": "ok"}]}
    events += [{"event": "restart", **restart}, {"event": "stopped", "reason": "asked"}]
    lines = (json.dumps({"seq": n, "time": 1000.0 * int(run[-1]) + n, **one}) + "\n" for n, one in enumerate(events, 1))
    (workspace / "runs" / run / "events.jsonl").write_text("".join(lines))


def test_history_and_show(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path)
    write(tmp_path, "run-0", [2.0, 1.0])
    write(tmp_path, "run-1", [4.0, 3.0, 7.5, 2.0, 2.0, 1.0])
    rows = json.loads(plinth("-w", tmp_path, "run", "history", "--json").out)
    assert [(one["run"], one["steps"], one["loss"]) for one in rows] == [("run-1", 6, 3.25), ("run-0", 2, 1.5)]

    found = json.loads(plinth("-w", tmp_path, "run", "show", "latest", "--rows", 2, "--events", 1, "--json").out)
    assert (found["run"], found["step"], found["figures"]["final_loss"]) == ("run-1", 6, 3.25)
    assert [(one["step"], one["loss"]) for one in found["steps"]] == [(3, 7.5), (4, 2.0)]
    assert [(one["event"], one["reason"]) for one in found["events"]] == [("stopped", "asked")]
    part = json.loads(plinth("-w", tmp_path, "run", "show", "run-1", "--from", 4, "--to", 5, "--json").out)
    assert [one["step"] for one in part["steps"]] == [4, 5]
    assert part["steps"][0] == {"step": 4, "time": 1005.0, "loss": 2.0, "tokens": 32, "step_s": 0.5}

    shown = plinth("-w", tmp_path, "run", "show", "run-1", "--rows", 2).out
    assert shown.splitlines()[1].startswith("run-1: ")
    assert "7.5" in shown
    assert shown.splitlines()[-3:] == [
        "1970-01-01 00:16:41  job_started      ranks 1, nodes 1",
        "1970-01-01 00:16:48  restart          attempt 2, reason rank 1 was killed, backoff seconds 0, from step 2, "
        "lost seconds 1.25, hosts 1 of 1 passed all checks",
        "1970-01-01 00:16:49  stopped          reason asked",
    ]
    assert plinth("-w", tmp_path, "run", "history").out.index("run-1") < plinth(
        "-w", tmp_path, "run", "history"
    ).out.index("run-0")


@pytest.mark.parametrize("event", [{"event": "upgraded", "time": 1.0}, {"event": "resumed", "time": 1e300}])
def test_an_event_of_another_writer_is_shown_as_it_is(event: dict[str, Any]) -> None:
    assert _line(event) == f"unreadable  {event['event']:<15}  {event}"


def test_a_workspace_without_runs_and_an_unknown_run(plinth: Any, tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    assert json.loads(plinth("-w", tmp_path, "run", "history", "--json").out) == []
    assert plinth("-w", tmp_path, "run", "show", "latest").code == 3
