"""`plinth ops sli`: all runs of a workspace, its own objectives, the gate's exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth_ops.service_levels.indicators import INDICATORS
from tests.peers import Peer
from tests.plinth.training.conftest import tiny
from tests.plinth_ops.service_levels.test_indicators import healthy, restarted

duckdb = Peer("duckdb")

DAY = ("--at", "1970-01-02")


def trained(root: Path) -> None:
    """Two runs whose timelines were written by hand."""
    Workspace(root).ensure()
    for number, events in enumerate((healthy(), restarted())):
        run = tiny(root, run_id=f"run-{number}")
        configuration.write(run)
        numbered = ({"seq": seq, **line} for seq, line in enumerate(events, 1))
        run.directory.events.write_text("".join(json.dumps(line) + "\n" for line in numbered))


def test_runs_add_up_and_the_gate_refuses(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path)
    done = plinth("-w", tmp_path, "ops", "sli", *DAY, "--json")
    assert done.code == 0, done.err
    made = {one["indicator"]: one for one in json.loads(done.out)["indicators"]}
    assert (made["job success"]["total_s"], made["job success"]["value"]) == (16 + 22, 1)
    assert made["restore time"]["total_s"] == 10
    short = plinth("-w", tmp_path, "ops", "sli", *DAY, "--gate", "--only", "goodput")
    assert (short.code, "too little data: 19 s, minimum 3,600 s" in short.err) == (3, True)
    (tmp_path / "objectives.yaml").write_text("goodput_after_s: 10\n")
    refused = plinth("-w", tmp_path, "ops", "sli", *DAY, "--gate")
    assert (refused.code, "error budget exhausted: goodput" in refused.err) == (6, True)
    rows = {cells[0]: cells for line in refused.out.splitlines() if (cells := re.split(r"\s{2,}", line.strip()))}
    assert rows["job success"] == ["job success", "100.00%", "38 s × rank", "95.00%", "0% spent", "-"]
    assert rows["goodput"][-2].endswith("% spent: exhausted")
    assert rows["checkpoint frequency"][-1].endswith(" s between checkpoints on average")
    assert "SLI attainment in the 28 days until 1970-01-02 00:00 UTC" in refused.out
    (tmp_path / "objectives.yaml").write_text("goodput: 0.2\ngoodput_after_s: 10\n")
    assert plinth("-w", tmp_path, "ops", "sli", *DAY, "--gate", "--only", "goodput").code == 0
    still = plinth("-w", tmp_path, "ops", "sli", *DAY, "--gate")
    assert "error budget exhausted: device utilisation, lineage completeness\n" in still.err  # of data that is not here
    assert plinth("-w", tmp_path, "ops", "sli", "--only", "godput").code == 2
    (tmp_path / "objectives.yaml").write_text("goodput: 95\n")
    assert plinth("-w", tmp_path, "ops", "sli", *DAY).code == 2


def test_nothing_measured_is_said_and_is_no_pass(plinth: Any, tmp_path: Path) -> None:
    Workspace(tmp_path).ensure()
    assert plinth("-w", tmp_path, "ops", "sli").out.count("nothing measured") == len(INDICATORS)
    assert plinth("-w", tmp_path, "ops", "sli", "--gate").code == 3


def test_views_of_duckdb_say_what_the_command_says(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path)
    shown = json.loads(plinth("-w", tmp_path, "ops", "sli", *DAY, "--json").out)["indicators"]
    done = plinth("-w", tmp_path, "ops", "sli", "export", tmp_path / "levels", *DAY)
    assert done.code == 0, done.err
    base = duckdb.connect()
    base.execute((tmp_path / "levels" / "views.sql").read_text())
    asked = "select indicator, unit, target, good_s, total_s, value, spent, measure from levels"
    for row, one in zip(base.sql(asked).fetchall(), shown, strict=True):
        names = ("indicator", "unit", "target", "good_s", "total_s", "value", "spent", "measure")
        assert row == tuple(pytest.approx(one[name]) if isinstance(one[name], float) else one[name] for name in names)
    half = base.sql("select total_s from level(to_timestamp(1000), to_timestamp(1004)) where indicator = 'job success'")
    assert half.fetchall() == [(4 * 2 + 4 * 2,)]
    assert base.sql("select value from by_day where indicator = 'goodput'").fetchall() == [
        (pytest.approx(shown[1]["value"]),)
    ]
    assert base.sql("select count(*) from by_subject where indicator = 'goodput'").fetchall() == [(2,)]
