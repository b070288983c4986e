"""Run a command line in this process, as the `plinth` script would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from plinth_jobs.cli import call


@dataclass(frozen=True)
class Outcome:
    """Result of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def plinth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`plinth("status", "--json")` in an empty directory; nothing of this machine's environment leaks in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLINTH_WORKSPACE", raising=False)

    def run(*args: object) -> Outcome:
        capfd.readouterr()
        code = call([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run
