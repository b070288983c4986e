"""Measurements of a qualification, in order. A measurement that fails becomes a figure with the reason, and the next
one begins.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import plinth
from plinth import processes
from plinth.compute.context import Context
from plinth.errors import PlinthError, RequestError, TrainingError
from plinth.launch.parameters import HostChecks, Supervision
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training import job
from plinth.training.attempts import this_host
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry import machine_speed
from plinth.training.telemetry.machine_speed import DeviceSpeed
from plinth.training.telemetry.timeline import Event, read_events
from plinth.trust import enrolment
from plinth_lab.qualification import trials
from plinth_lab.qualification.record import (
    PUBLISHED,
    PUBLISHED_ON,
    Figure,
    Qualification,
    figure,
    missing,
    sheet_of,
)
from plinth_lab.qualification.trials import SpeedTrial, TrialPlacement

#: Steps of the run that is killed; a checkpoint is committed every `SAVE_EVERY` steps.
KILLED_STEPS, SAVE_EVERY = 12, 4
#: Ranks on a machine without GPUs.
CPU_RANKS = 2
NO_GPU = "no GPU on this machine"
#: Folder of the tests in a checkout of the source code, next to `platform/`.
_TESTS = Path(plinth.__file__).resolve().parents[2] / "tests"


@dataclass(frozen=True)
class Bench:
    """Devices of this machine and a scratch folder, which all measurements need.

    Args:
        speeds: measured speed of each GPU, or of the processors.
        trials: trials of training speed.
    """

    folder: Path
    speeds: tuple[DeviceSpeed, ...]
    trials: tuple[SpeedTrial, ...]

    @property
    def cuda(self) -> bool:
        return self.speeds[0].kind == "cuda"

    @property
    def ranks(self) -> int:
        return len(self.speeds) if self.cuda else CPU_RANKS

    def memory_bytes(self) -> float | None:
        """Return the memory of a device according to its data sheet; None for CPUs."""
        sheet = sheet_of(self.speeds[0].name) if self.cuda else None
        return None if sheet is None else float(sheet[1].memory_bytes)

    def context(self) -> Context:
        return Context(Workspace(self.folder).ensure())


def qualify(
    folder: Path, chosen: Sequence[str] = (), tell: Callable[[str, int, int], None] = lambda name, done, of: None,
    own: tuple[SpeedTrial, ...] = (),
) -> Qualification:  # fmt: skip
    """Measure this machine in a scratch folder.

    Args:
        chosen: sections to measure; all if empty.
        tell: called before each measurement with its name, the number of finished measurements and their total.
        own: trials to use in place of those that suit the devices.

    Raises:
        WorkerError: the devices could not be measured.
    """
    begun = time.monotonic()
    with scratch_trust(folder):
        speeds = machine_speed.measure(Workspace(folder).ensure()).devices
        gpus = tuple(one for one in speeds if one.kind == "cuda")
        used = gpus or speeds[:1]
        bench = Bench(folder, used, own or trials.trials_for(used))
        figures: list[Figure] = []
        units = [unit for unit in _units(bench) if not chosen or unit[0] in chosen]
        for number, (section, name, measure) in enumerate(units):
            tell(name, number, len(units))
            try:
                figures += measure()
            except RequestError as error:  # it does not fit
                figures.append(missing(section, name, str(error)))
            except (PlinthError, OSError, ValueError, subprocess.SubprocessError) as error:  # the disk, a time limit
                why = str(error) if isinstance(error, PlinthError) else f"{type(error).__name__}: {error}"
                figures.append(missing(section, name, why, "failed"))
    return Qualification(
        host=this_host(), driver=driver(), device=used[0].name, count=bench.ranks,
        figures=(*figures, *_prices(bench.trials, figures)), seconds=round(time.monotonic() - begun, 1),
    )  # fmt: skip


def _units(bench: Bench) -> Iterator[tuple[str, str, Callable[[], list[Figure]]]]:
    """Yield all measurements as section, name and function. Each trial of speed is one measurement."""
    for section, measure in MEASUREMENTS.items():
        yield section, section, lambda measure=measure: list(measure(bench))  # type: ignore[misc]
        if section == "links":
            for trial in bench.trials:
                yield "speed", trial.name, lambda trial=trial: list(speed(bench, trial))  # type: ignore[misc]


def _prices(made: Sequence[SpeedTrial], figures: Sequence[Figure]) -> Iterator[Figure]:
    """Yield the price of deterministic kernels, for each pair of trials that differ in nothing else."""
    rates = {one.name: one for one in figures if one.section == "speed" and one.value}
    for trial in made:
        exact = trial.model_copy(update={"deterministic": True})
        free, kept = rates.get(trial.name), rates.get(exact.name)
        if trial.deterministic or free is None or kept is None:
            continue
        name = f"{exact.name}: price of deterministic kernels"
        if free.note == kept.note:
            yield figure("speed", name, 100 * ((free.value or 0) / (kept.value or 1) - 1), "%")
        else:  # one of them ran out of memory
            yield missing("speed", name, f"measured with different placements: {kept.note}; {free.note}")


def driver() -> str:
    """Return the version of the GPU driver, or an empty string."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return str(processes.run(command, capture_output=True, text=True, timeout=60).stdout).split("\n")[0].strip()
    return ""


@contextmanager
def scratch_trust(folder: Path) -> Iterator[None]:
    """Pin a demo root of trust in `folder`, and hide the user's keys and workspace within the block."""
    ours = (TRUST_VARIABLE, "PLINTH_WORKSPACE", "MLFLOW_TRACKING_URI")
    hidden = [name for name in os.environ if name in ours or name.startswith(KEY_VARIABLE)]
    before = {name: os.environ.pop(name) for name in hidden}
    os.environ[TRUST_VARIABLE] = str(folder / "trust")
    try:
        enrolment.initialise(Workspace(folder), "qualification", ["qualification@example.org"], demo=True)
        yield
    finally:
        del os.environ[TRUST_VARIABLE]
        os.environ.update(before)


def devices(bench: Bench) -> Iterator[Figure]:
    """Yield the rate of matrix products and the memory bandwidth of the slowest device, next to the data sheet's."""
    sheet = sheet_of(bench.speeds[0].name) if bench.cuda else None
    for precision in bench.speeds[0].flops:
        slowest = min(one.flops[precision] for one in bench.speeds)
        against = (sheet[1].bf16_flops / 1e12, "data sheet", sheet[0]) if sheet and precision == "bf16" else None
        yield figure("devices", f"matrix products, {precision}", slowest / 1e12, "TFLOP/s", against)
    bandwidth = min(one.bytes_per_s for one in bench.speeds)
    against = (sheet[1].memory_bytes_per_s / 1e9, "data sheet", sheet[0]) if sheet else None
    yield figure("devices", "memory bandwidth, copy", bandwidth / 1e9, "GB/s", against)


def links(bench: Bench) -> Iterator[Figure]:
    """Yield the bus bandwidth of an all-reduce over all devices of this machine, by message size."""
    if bench.ranks == 1:
        yield missing("links", "all-reduce", "one device: there is no link to measure")
        return
    sheet = sheet_of(bench.speeds[0].name) if bench.cuda else None
    found = trials.on_ranks(bench.ranks, bench.folder / "links", "links")
    largest = max(map(int, found))
    for size, rate in found.items():
        against = (sheet[1].within_bytes_per_s / 1e9, "data sheet", sheet[0]) if sheet else None
        name = f"all-reduce of {int(size) / 2**20:.0f} MiB over {bench.ranks} ranks"
        yield figure("links", name, rate / 1e9, "GB/s", against if int(size) == largest else None)


def speed(bench: Bench, trial: SpeedTrial) -> Iterator[Figure]:
    """Yield tokens per second and device, model FLOPs utilization, memory, and the proof of steps without a wait.

    Raises:
        RequestError: the trial does not fit on the devices.
        TrainingError: a rank failed.
    """
    folder = bench.folder / f"trial-{bench.trials.index(trial)}"
    first = trials.placement(trial, bench.ranks, bench.memory_bytes())
    placed, config, found = _trained(bench, trial, first, folder)
    rate = config.step_tokens() * found["steps"] / found["elapsed_s"] / bench.ranks
    sheet = sheet_of(bench.speeds[0].name) if bench.cuda else None
    known = PUBLISHED.get((trial.preset, trial.kind)) if sheet and sheet[0] == PUBLISHED_ON else None
    how = f"micro batch {placed.micro} x {trial.sequence_tokens} tokens, ZeRO-{placed.zero_stage}"
    how += ", all blocks recomputed" if placed.recompute else ""
    how += f", documents of {trials.MEAN_DOCUMENT:,} tokens on average"
    yield figure(
        "speed", trial.name, rate, "tokens/s per device", (known[0], "published", known[1]) if known else None, how
    )
    peak = sheet[1].bf16_flops if sheet else bench.speeds[0].flops[trial.precision] / bench.ranks
    against = "of the data sheet's BF16 peak" if sheet else "of the measured matrix products"
    against += "; counts attention over whole sequences, although it stays within documents"
    used = rate * trials.flops_per_token(config) / peak
    yield figure("speed", f"{trial.name}: model FLOPs utilization", 100 * used, "%", None, against)
    if found["memory_bytes"]:
        yield figure("speed", f"{trial.name}: peak memory", found["memory_bytes"] / 1e9, "GB")
    name = f"{trial.name}: steps without a wait for the device"
    if found["sync_free"]:
        yield figure("speed", name, found["sync_free"], f"of {found['steps']} steps")
    else:
        why = found.get("sync_error") or NO_GPU
        yield missing("speed", name, why, "failed" if bench.cuda else "not measured")


def _trained(
    bench: Bench, trial: SpeedTrial, first: TrialPlacement, folder: Path
) -> tuple[TrialPlacement, RunConfig, dict[str, Any]]:
    """Train a trial: with less memory if the device runs out of it, and without the sync debug mode if a step waits."""
    strict, extra = "strict", dict[str, Any]()
    options = [first, *trials.smaller(first)]
    while True:
        placed = options[0]
        ctx = Context(Workspace(folder / f"micro-{placed.micro}-{placed.recompute}-{strict}").ensure())
        config = trials.prepared(ctx, trial, placed, bench.ranks)
        words = ("train", str(config.directory.config), str(trial.warmup), strict)
        try:
            return placed, config, {**trials.on_ranks(bench.ranks, ctx.workspace.root / "ranks", *words), **extra}
        except TrainingError as error:
            if "out of memory" in str(error).lower() and len(options) > 1:
                options.pop(0)
            elif "synchronizing" in str(error) and strict:
                strict, extra = "", {"sync_error": str(error)}
            else:
                raise


def recovery(bench: Bench) -> Iterator[Figure]:
    """Yield the cost of checkpoints and of a killed rank, in a run that the launcher submits and the supervisor
    restarts, and whether the resumed run was proved equal to an undisturbed one."""
    trial = next((one for one in bench.trials if one.preset in ("1b", "1m")), bench.trials[0])
    trial = trial.model_copy(update={"steps": KILLED_STEPS, "warmup": 0, "deterministic": True, "float8": "none"})
    fits = trials.placement(trial, bench.ranks, bench.memory_bytes())
    placed = fits.model_copy(update={"micro": 1})  # leaves memory for the copy of a checkpoint
    ctx = Context(Workspace(bench.folder / "killed").ensure())
    saved = Checkpoints(every_steps=SAVE_EVERY, audit_steps=SAVE_EVERY, mode="async")
    watched = Supervision(backoff_s=0.1, host_checks=HostChecks(all_reduce=False))
    config = trials.prepared(ctx, trial, placed, bench.ranks, checkpoints=saved, supervision=watched)
    try:
        job.submit_or_find(ctx, config)
        killed_at = _kill_a_rank(config)
        job.follow(ctx, config)
    finally:  # the job would outlive this process and its folder, on an error as after Ctrl-C
        job.cancel(ctx, config)
    events = list(read_events(config.directory.events))
    yield from _checkpoints(events)
    yield from _after_kill(events, killed_at)


def _kill_a_rank(config: RunConfig, limit_s: float = trials.LIMIT_S) -> float:
    """Kill a rank after the first committed checkpoint and one more step. Return the time (Unix, seconds).

    Raises:
        TrainingError: no checkpoint was committed in time, or the ranks cannot be found.
    """
    until, saved = time.monotonic() + limit_s, 0
    while time.monotonic() < until:
        steps = 0
        for event in _read(config):
            saved = int(event["step"]) if event["event"] == "checkpoint" and not saved else saved
            steps = max(steps, int(event["step"])) if event["event"] == "step" else steps
        if saved and steps > saved and (ranks := _ranks_of(config)):
            ranks[-1].kill()  # refused if the number now belongs to another process
            return time.time()
        if config.directory.result.exists():
            break
        time.sleep(0.05)
    raise TrainingError(
        "no rank could be killed after the first checkpoint",
        found=f"checkpoint at step {saved}" if saved else "no checkpoint",
        expected=f"a checkpoint, then a running rank, within {limit_s:g} s",
        remedy=f"read {config.directory.log}",
    )


def _read(config: RunConfig) -> list[Event]:
    with suppress(FileNotFoundError):
        return list(read_events(config.directory.events))
    return []


def _ranks_of(config: RunConfig) -> list[psutil.Process]:
    """Return the live rank processes of a run, which are known by their configuration."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name().startswith("rank-") and str(config.directory.config) in process.cmdline():
                found.append(process)
    return found


def _checkpoints(events: Sequence[Event]) -> Iterator[Figure]:
    made = [event for event in events if event["event"] == "checkpoint"]
    if not made:
        yield missing("checkpoints", "checkpoint", "none was committed", "failed")
        return
    last = made[-1]
    yield figure("checkpoints", "size", float(last["bytes"]) / 1e6, "MB")
    for name, field in (("stall of training", "stall_s"), ("seconds until committed", "seconds")):
        yield figure("checkpoints", name, max(float(one[field]) for one in made), "s", None, "longest")


def _after_kill(events: Sequence[Event], killed_at: float) -> Iterator[Figure]:
    later = [event for event in events if float(event["time"]) > killed_at]
    restarts = [event for event in later if event["event"] == "restart"]
    begun = float(restarts[0]["time"]) if restarts else math.inf
    steps = [event for event in later if event["event"] == "step" and float(event["time"]) > begun]
    if not steps:
        yield missing("recovery", "restart after kill -9 of a rank", "the run did not go on", "failed")
        return
    seconds = float(steps[0]["time"]) - killed_at
    note = "published: under 40 s on 512 A100, without a proof (arXiv:2607.01646)"
    yield figure("recovery", "kill -9 of a rank until the next step", seconds, "s", None, note)
    yield figure("recovery", "repeated steps", float(restarts[0]["lost_steps"]), "steps")
    proofs = [event for event in later if event["event"] == "audited"]
    if proofs and proofs[-1]["bit_exact"]:
        yield figure("recovery", "resume proved bit-exact", float(proofs[-1]["compared_steps"]), "steps compared")
    else:
        found = f"largest difference of a loss: {proofs[-1]['delta']}" if proofs else "no evidence was written"
        yield missing("recovery", "resume proved bit-exact", found, "failed")


def gpu_tests(bench: Bench) -> Iterator[Figure]:
    """Yield the result of `pytest -m gpu`, which needs a checkout of the source code."""
    if not bench.cuda or not _TESTS.is_dir():
        why = NO_GPU if not bench.cuda else "no checkout of the source code next to the installed package"
        yield missing("tests", "pytest -m gpu", why)
        return
    command = processes.python("pytest", "-m", "gpu", "-q", "--no-header", str(_TESTS / "plinth" / "training"))
    done = processes.run(command, cwd=_TESTS.parent, capture_output=True, text=True, timeout=1800)
    yield judged_tests((done.stdout.strip().splitlines() or ["no output"])[-1], done.returncode)


def judged_tests(said: str, status: int) -> Figure:
    """Return the figure of a pytest run from the last line of its output. Tests that were all skipped prove nothing."""
    if status:
        return missing("tests", "pytest -m gpu", said, "failed")
    if " passed" not in said:
        return missing("tests", "pytest -m gpu", said)
    return Figure(section="tests", name="pytest -m gpu", note=said)


#: Measurements by section, in order. Trials of speed follow the links.
MEASUREMENTS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "devices": devices,
    "links": links,
    "recovery": recovery,
    "tests": gpu_tests,
}
