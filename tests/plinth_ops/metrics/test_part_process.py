"""Parts that a process of its own collects: its faults are theirs by name, and it outlives neither work nor owner."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.utils import floatToGoString

from plinth.compute.worker import Program
from plinth.errors import PlinthError
from plinth.training.sinks.run_metrics import MetricSample
from plinth_ops.metrics.exporter import Exporter, ExportPart
from plinth_ops.metrics.parts import PartProcess
from tests.plinth_ops.metrics import part_handlers

PROGRAM = Program(f"{part_handlers.__name__}:serve", quiet=True)


@pytest.fixture
def apart() -> Iterator[PartProcess]:
    made = PartProcess(PROGRAM)
    yield made
    made.end()


def collected(apart: PartProcess, part: str) -> list[MetricSample]:
    while (found := apart.collect(part)) is None:
        time.sleep(0.01)
    return found


def exporter(apart: PartProcess, *names: str) -> tuple[Exporter, list[str]]:
    said: list[str] = []

    def part(name: str) -> ExportPart:
        return ExportPart(name, 3600.0, lambda: apart.collect(name))

    return Exporter([part(name) for name in names], say=said.append, end=apart.end), said


def test_one_process_collects_what_is_due_and_ends(apart: PartProcess) -> None:
    found, said = exporter(apart, "sound", "many")
    found.refresh()
    assert [part.begun is not None for part in found.parts] == [True, True]  # no caller waits
    assert apart._worker is not None
    first = apart._worker.pid
    text = found.complete().decode()
    assert said == []
    assert f"plinth_taints {floatToGoString(first)}\n" in text
    assert text.count('"} NaN\n') == part_handlers.MANY
    assert not psutil.pid_exists(first)
    assert collected(apart, "sound")[0].value != first


@pytest.mark.parametrize(("name", "fault"), [
    ("fails", "the ledger does not answer"), ("defect", "ended found: status 1"), ("dies", "ended found: status -9"),
])  # fmt: skip
def test_a_part_that_fails_is_named_and_those_after_it_are_collected(apart: PartProcess, name: str, fault: str) -> None:
    found, said = exporter(apart, name, "sound")
    found.complete()
    assert len(said) == 1
    assert said[0].startswith(f"cannot collect {name}: ")
    assert fault in said[0]
    assert [part.up for part in found.parts] == [False, True]
    assert b"plinth_taints " in found.text


def test_a_part_that_hangs_holds_up_no_other_and_is_ended(apart: PartProcess) -> None:
    found, said = exporter(apart, "hangs", "sound")
    other = ExportPart("workspace", 0.0, lambda: [MetricSample("plinth_taints", (), time.monotonic())])
    found.parts = [*found.parts, other]
    found.refresh()
    worker = apart._worker
    assert worker is not None
    while worker.started_and_finished() != (1, 0):
        time.sleep(0.01)
    before = other.samples
    found.refresh()
    assert said == []
    assert other.samples != before
    apart._limit_s = 0.0
    found.refresh()
    assert said == ["cannot collect hangs: timeout after 0 s"]
    assert not psutil.pid_exists(worker.pid)
    apart._limit_s = 120.0
    found.complete()
    assert [part.up for part in found.parts] == [False, True, True]


def test_it_does_not_outlive_its_owner_however_that_ends(tmp_path: Path) -> None:
    script = (
        f"import time\nfrom plinth.compute.worker import Program\n"
        f"from plinth_ops.metrics.parts import PartProcess\n"
        f"apart = PartProcess(Program({PROGRAM.target!r}))\napart.collect('hangs')\n"
        f"while apart._worker.started_and_finished() != (1, 0): time.sleep(0.01)\n"
        f"print(apart._worker.pid, flush=True)\ntime.sleep(3600)\n"
    )
    root = Path(__file__).resolve().parents[3]
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 120
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_program_that_does_not_start_is_said() -> None:
    apart = PartProcess(Program(f"{part_handlers.__name__}:absent", quiet=True))
    with pytest.raises(PlinthError, match="does not start"):
        collected(apart, "sound")
