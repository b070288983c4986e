"""Every game day passes at an instant, and fails at one when the protection that it tests is taken out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plinth_ops.gamedays.device_days import BOUNDARIES as ROLLBACK
from plinth_ops.gamedays.gameday import TABLE, find
from plinth_ops.gamedays.play import play
from plinth_ops.gamedays.upgrade_day import BOUNDARIES as CUT_OVER

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent

#: Instants of seed 0 among which one needs the protection: a clock that outlives the root, a line that stalls for long.
INSTANTS = 8


@pytest.mark.parametrize("name", TABLE)
def test_it_passes(name: str) -> None:
    record = play(find(name), instants=1)
    assert record.passed, [one.failures for one in record.instants]


@pytest.mark.parametrize(("name", "instants"), [("upgrade", 2 * len(CUT_OVER)), ("flipped-bit", len(ROLLBACK))])
def test_it_passes_at_every_boundary(name: str, instants: int) -> None:
    """The first instant is played above."""
    record = play(find(name), first=1, instants=instants - 1)
    assert record.passed, [(one.struck, one.failures) for one in record.instants if not one.passed]


@pytest.mark.parametrize("name", TABLE)
def test_without_the_protection_it_is_red(name: str) -> None:
    for first in range(INSTANTS):
        (instant,) = without_protection(name, first)["instants"]
        failed = [one for one in instant["findings"] if not one["passed"]]
        assert not any("was completed" in one["what"] for one in failed), failed
        if failed or instant["aborted"]:
            return
    pytest.fail("no instant needed the protection")


def without_protection(name: str, first: int) -> dict[str, Any]:
    root = HERE.parents[2]
    path = os.pathsep.join([str(HERE), str(root / "platform"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "removed_protections", name, "0", str(first), "1"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
