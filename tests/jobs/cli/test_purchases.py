"""`plinth run plan --budget`."""

import json
from pathlib import Path

import pytest

from plinth.launch.devices import DEVICES
from plinth_jobs.cli import call


def test_a_budget_is_answered_without_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "plan", "-w", str(tmp_path), "--devices", "512xH100", "--budget", "2M", "--tokens", "1T", "--json"]
    assert call(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device_hours"] == pytest.approx(2e6 / DEVICES["h100"].on_demand_hour)
    assert [one["best"]["tokens"] for one in found["models"]] == [1e12, 1e12]
    assert call(words[:-1]) == 0
    shown = capsys.readouterr().out
    assert "so your loss will differ" in shown
    assert "utilization" in shown


def test_a_ladder_of_ones_own_gives_the_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["experiment", "scaling", "example"]) == 0
    (tmp_path / "runs.csv").write_text(capsys.readouterr().out)
    assert call(["run", "plan", "--devices", "8xH100", "--budget", "1e3", "--runs", str(tmp_path / "runs.csv")]) == 0
    assert "80%: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "2M"], "--budget needs --devices"),
        (["--budget", "-1", "--devices", "8xH100"], "not a positive number"),
        (["--budget", "2Q", "--devices", "8xH100"], "expected a number such as 2M"),
    ],
)
def test_what_cannot_be_read_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "plan", *words]) == 2
    assert said in capsys.readouterr().err
