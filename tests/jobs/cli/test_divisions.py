"""`plinth run plan --devices`: divisions ranked."""

from __future__ import annotations

import json

from click.testing import CliRunner

from plinth.errors import RequestError
from plinth_jobs.cli import cli


def test_divisions_from_the_command_line() -> None:
    """JSON has all of them, in the order of the table."""
    asked = ["run", "plan", "-r", "jobs/plinth_jobs/recipes/demo.yaml", "--devices", "8xH200"]
    found = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert found["minimum_devices"] == 1
    assert found["plan"]["device"] == "h200"
    first = found["divisions"][0]
    assert first["run_s"][0] < found["plan"]["steps"] * first["step_s"] < first["run_s"][1]
    shown = CliRunner().invoke(cli, [*asked, "--top", "1"], catch_exceptions=False).stdout
    assert f"8 h200: {len(found['divisions'])} divisions can run" in shown
    assert first["division"] in shown


def test_a_fleet_that_the_run_cannot_use_is_refused_with_one_that_it_can() -> None:
    refused = CliRunner().invoke(
        cli, ["run", "plan", "-r", "jobs/plinth_jobs/recipes/demo.yaml", "--devices", "512xH200"]
    )
    assert isinstance(refused.exception, RequestError)
    assert "batches of 4 sequences of 512 tokens, 2 layers, 4 heads" in str(refused.exception)
    assert "use 32 devices" in str(refused.exception)
