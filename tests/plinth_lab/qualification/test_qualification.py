"""Qualification of a machine: figures next to published ones, placement by memory, and real trials on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plinth.compute.context import Context
from plinth.errors import RequestError, SignatureError
from plinth.launch.devices import DEVICES
from plinth.storage.workspace import Workspace
from plinth.training.attempts import this_host
from plinth.training.config import RunConfig
from plinth.training.telemetry.machine_speed import DeviceSpeed
from plinth_jobs.cli import call
from plinth_lab.qualification import record, trials, work
from plinth_lab.qualification.record import Figure, Qualification, figure, missing, sheet_of
from plinth_lab.qualification.trials import SpeedTrial, TrialPlacement

H100 = float(DEVICES["h100"].memory_bytes)
BRIEF = SpeedTrial(preset="1m", sequence_tokens=64, precision="fp32", steps=2, warmup=1)


def gpu(name: str) -> DeviceSpeed:
    return DeviceSpeed(kind="cuda", index=0, name=name, flops={"bf16": 7e14}, bytes_per_s=3e12)


def qualification(*figures: Figure) -> Qualification:
    return Qualification(host=this_host(), driver="", device="a <device>", count=1, figures=figures, seconds=1.0)


def test_a_figure_is_low_below_a_share_of_its_reference() -> None:
    states = [figure("s", "n", value, "x", (100.0, "published", "a paper")).state for value in (80.0, 79.9, 120.0)]
    assert states == ["ok", "low", "ok"]
    found = figure("s", "n", 50.0, "x", (100.0, "data sheet", "h100"))
    assert (found.state, found.share) == ("low", 0.5)
    assert missing("s", "n", "why").share is None


def test_data_sheets_are_found_by_the_name_of_the_driver() -> None:
    assert (sheet_of("NVIDIA H100 80GB HBM3") or ("",))[0] == "h100"
    assert sheet_of("NVIDIA GeForce RTX 4090") is None


@pytest.mark.parametrize(
    ("preset", "ranks", "expected"),
    [
        ("1b", 1, TrialPlacement(micro=4, zero_stage=1, recompute=0)),
        ("8b", 8, TrialPlacement(micro=8, zero_stage=2, recompute=1)),
    ],
)
def test_the_largest_micro_batch_that_fits_is_used(preset: str, ranks: int, expected: TrialPlacement) -> None:
    sequence = 8192 if preset == "8b" else 4096
    assert trials.placement(SpeedTrial(preset=preset, sequence_tokens=sequence, compile=True), ranks, H100) == expected


def test_a_model_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="preset 8b does not fit on 1 devices"):
        trials.placement(SpeedTrial(preset="8b", sequence_tokens=8192), 1, H100)


def test_fp8_is_tried_only_on_gpus_that_compute_it() -> None:
    kinds = {name: {one.kind for one in trials.trials_for([gpu(name)])} for name in ("NVIDIA H100", "NVIDIA A100 80GB")}
    assert kinds == {"NVIDIA H100": {"bf16", "fp8"}, "NVIDIA A100 80GB": {"bf16"}}


def test_less_memory_is_tried_after_the_device_runs_out_of_it() -> None:
    found = list(trials.smaller(TrialPlacement(micro=4, zero_stage=1, recompute=0)))
    assert [(one.micro, one.recompute) for one in found] == [(2, 0), (1, 0), (1, 1)]


def test_records_are_signed_and_an_edited_one_is_refused(tmp_path: Path, own_trust: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = qualification(figure("speed", "1b, bf16", 47.0, "tokens/s"))
    record.append(ctx, made)
    [found] = record.QUALIFICATIONS.records(ctx)
    assert Qualification.model_validate(found.body) == made
    file = ctx.workspace.root / "qualifications" / "00001.json"
    file.write_text(file.read_text().replace('"payload": "', '"payload": "AAAA'))
    with pytest.raises(SignatureError):
        record.QUALIFICATIONS.records(ctx)


def test_the_page_shows_every_figure_and_escapes_names(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    made = qualification(figure("speed", "<b>x</b>", 1.0, "s"), missing("links", "all-reduce", "no <link>", "failed"))
    page = Path(record.write(ctx, made, "record 1")).read_text()
    assert "&lt;b&gt;x" in page
    assert "no &lt;link&gt;" in page
    assert "a &lt;device&gt;" in page


def test_deterministic_kernels_have_a_price_only_at_the_same_placement() -> None:
    exact, free = BRIEF, BRIEF.model_copy(update={"deterministic": False})
    kept = figure("speed", exact.name, 100.0, "tokens/s", None, "micro batch 4")
    for note, value, state in (("micro batch 4", 10.0, "ok"), ("micro batch 2", None, "not measured")):
        [price] = work._prices((exact, free), [kept, figure("speed", free.name, 110.0, "tokens/s", None, note)])
        assert (price.value and round(price.value), price.state) == (value, state)


def test_skipped_tests_prove_nothing() -> None:
    states = {"2 passed, 3 skipped in 4s": (0, "ok"), "5 skipped in 1s": (0, "not measured"), "1 failed": (1, "failed")}
    assert all(work.judged_tests(said, status).state == state for said, (status, state) in states.items())


def test_steps_before_the_restart_are_no_recovery() -> None:
    step = {"event": "step", "time": 2.0}
    restart = {"event": "restart", "time": 3.0, "lost_steps": 1}
    assert [one.state for one in work._after_kill([step, restart], 1.0)] == ["failed"]  # type: ignore[list-item]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), subprocess.TimeoutExpired("pytest", 1800)], ids=["disk", "time"]
)
def test_a_fault_of_the_machine_is_a_figure_and_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def failing(bench: work.Bench) -> Iterator[Figure]:
        raise fault
        yield

    monkeypatch.setitem(work.MEASUREMENTS, "links", failing)
    found = work.qualify(tmp_path, ("devices", "links"), own=(BRIEF,))
    assert [type(fault).__name__ in one.note for one in found.failed] == [True]
    assert len(found.figures) > 1


@pytest.mark.exhaustive
def test_an_interrupt_leaves_no_rank_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def interrupted(config: RunConfig) -> float:
        until = time.monotonic() + 600
        while not (ranks := work._ranks_of(config)) and time.monotonic() < until:
            time.sleep(0.05)
        seen.extend(ranks)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "_kill_a_rank", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.qualify(tmp_path, ("recovery",), own=(BRIEF,))
    assert seen
    assert not any(process.is_running() for process in seen)
    assert not any(
        str(tmp_path) in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_links_and_speed_of_this_machine(tmp_path: Path) -> None:
    """The refused trial is a figure with the rank's reason, and the next one is measured all the same."""
    refused = BRIEF.model_copy(update={"float8": "rowwise", "precision": "bf16"})
    found = work.qualify(tmp_path, ("links", "speed"), own=(refused, BRIEF))
    figures = {one.name: one for one in found.figures}
    assert figures[refused.name].state == "failed"
    assert "FP8" in figures[refused.name].note or "float8" in figures[refused.name].note
    assert (figures[BRIEF.name].value or 0) > 0
    assert (figures["all-reduce of 1 MiB over 2 ranks"].value or 0) > 0
    assert figures[f"{BRIEF.name}: steps without a wait for the device"].state == "not measured"


@pytest.mark.exhaustive
def test_a_killed_rank_is_recovered_and_the_resume_is_proved(tmp_path: Path) -> None:
    found = work.qualify(tmp_path, ("recovery",), own=(BRIEF,))
    figures = {one.name: one for one in found.figures}
    assert not found.failed
    assert (figures["resume proved bit-exact"].value or 0) >= 1
    assert (figures["kill -9 of a rank until the next step"].value or 0) > 0
    assert (figures["size"].value or 0) > 1


@pytest.mark.slow
def test_the_command_needs_no_workspace_and_writes_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["qualify", "--only", "devices", "--only", "tests", "--unsigned", "--json", "-w", str(tmp_path / "new")]
    assert call(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["section"] for one in found["figures"]} == {"devices", "tests"}
    assert Path(found["page"]).is_file()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_the_measurement_and_its_folder(tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["-m", "plinth_jobs.cli", "qualify", "--only", "recovery", "--unsigned", "-w", str(tmp_path / "new")]
    child = subprocess.Popen([sys.executable, *words], env={**os.environ, "TMPDIR": str(scratch)})
    until = time.monotonic() + 600
    while not list(scratch.glob("plinth-qualify-*/killed/**/events.jsonl")) and time.monotonic() < until:
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(number)
    assert child.wait(600) != 0
    assert not list(scratch.glob("plinth-qualify-*"))
    assert not [
        one.pid for one in psutil.process_iter(["cmdline"]) if str(scratch) in " ".join(one.info["cmdline"] or ())
    ]
