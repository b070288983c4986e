"""Faults of the process that submits a job: they strike within its submission, once ever, and count its boundaries."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

from plinth_ops.gamedays import faults
from plinth_ops.gamedays.faults import ORCHESTRATOR, RehearsalFault


def submit(folder: Path, environment: dict[str, str]) -> None:
    """A submission of three boundaries, after a change that is none of it."""
    os.environ.update(environment)
    os.mkdir(folder / "before")
    with faults.submission():
        for name in ("one", "two"):
            os.mkdir(folder / name)
        os.rename(folder / "two", folder / "three")


def submitted(folder: Path, *planned: RehearsalFault) -> int | None:
    """The status of a process with a plan, in a fresh folder."""
    folder.mkdir()
    _, environment = faults.plan(folder.parent / "plan", *planned)
    process = multiprocessing.get_context("fork").Process(target=submit, args=(folder, environment))
    process.start()
    process.join()
    return process.exitcode


def test_it_strikes_at_the_boundary_of_the_submission_and_not_again(tmp_path: Path) -> None:
    kill = RehearsalFault(kind="kill at write", step=0, rank=ORCHESTRATOR, value=2)
    of_a_rank = RehearsalFault(kind="kill at write", step=1, rank=0, value=1)
    assert submitted(tmp_path / "first", kill, of_a_rank) == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["before", "one"]
    assert submitted(tmp_path / "second", kill, of_a_rank) == 0
    assert len(list((tmp_path / "second").iterdir())) == 3


def test_it_strikes_before_a_file_has_its_name(tmp_path: Path) -> None:
    kill = RehearsalFault(kind="kill at write", step=0, rank=ORCHESTRATOR, place="three")
    assert submitted(tmp_path / "first", kill) == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["before", "one", "two"]


def test_boundaries_of_the_submission_are_counted(tmp_path: Path) -> None:
    count = RehearsalFault(kind="count writes", step=0, rank=ORCHESTRATOR)
    assert submitted(tmp_path / "first", count) == 0
    plan, _ = faults.plan(tmp_path / "plan", count)
    assert plan.mark(count).read_text() == "3"
