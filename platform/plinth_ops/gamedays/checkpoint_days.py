"""Game days of checkpoints: a corrupted checkpoint, a partial write, and a full disk.

All three game days start from the same run of 12 steps, which commits a checkpoint after steps 3, 6, 8, 9 and 12.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from plinth import processes
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal, without_audit

#: Steps after which the rehearsal commits, without the last one.
COMMITS = (3, 6, 8, 9)

#: Size of the small disk, in bytes.
DISK_BYTES = 4 << 20


@dataclass(frozen=True)
class Begun:
    """Undisturbed run, and a copy of the run that was stopped after step 10."""

    whole: Rehearsal
    half: RunConfig


@dataclass(frozen=True)
class Counted:
    """Undisturbed run, and the number of write boundaries (file changes) of a rank in each step that saves a
    checkpoint."""

    whole: Rehearsal
    boundaries: dict[int, int]


# A corrupted checkpoint


def begin(folder: Path) -> Begun:
    """Prepare an undisturbed run and a copy that is stopped after step 10."""
    whole = rehearsal.rehearse(folder / "whole")
    half = whole.copy(folder / "half", batches=faults.SOURCE)
    _, environment = faults.plan(folder / "plan", RehearsalFault(kind="stop", step=10))
    warm_job.run(half, **environment)
    return Begun(whole, half)


def corrupted_checkpoint(made: Begun, folder: Path, chooser: Random) -> Struck:
    """Damage one file in each of the newest one or two checkpoints, then resume the run."""
    config = made.half.model_copy(update={"workspace": str(folder / "workspace")})
    shutil.copytree(made.half.workspace, config.workspace)
    run, known = config.directory, checkpoint.committed(made.half.directory)
    hit = sorted(known[-1 - place] for place in range(chooser.choice([1, 1, 2])))
    where = [_damage(checkpoint.path(run, step), chooser) for step in hit]
    status = warm_job.run(config)
    story, (alert, after) = timeline(run.events), gameday.fired(config, CORRUPTED.alerts, "refused")
    refused = sorted(event["step"] for event in story.of("refused"))
    resumed = [event["step"] for event in story.of("resumed")][-1:]
    found = [
        rehearsal.finished(status),
        finding("exactly the damaged checkpoints are rejected", refused, hit),
        finding("training resumes from the newest intact checkpoint", resumed, [known[-1 - len(hit)]]),
        *made.whole.end_state(config),
        *alert,
    ]
    return Struck("; ".join(f"step {step}: {what}" for step, what in zip(hit, where, strict=True)), tuple(found), after)


def _damage(folder: Path, chooser: Random) -> str:
    """Damage one file of a checkpoint; return a description of the damage."""
    path = chooser.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    data, name = bytearray(path.read_bytes()), path.relative_to(folder).as_posix()
    at = chooser.randrange(len(data))
    kind = chooser.choice(["bit", "zeros", "torn", "gone"])
    if kind == "gone":
        path.unlink()
        return f"{name} is deleted"
    if kind == "torn":
        path.write_bytes(bytes(data[:at]))
        return f"{name} is truncated after {at} bytes"
    if kind == "zeros" and any(data[at : at + 512]):
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    else:
        data[at] ^= 1 << chooser.randrange(8)
        kind = "bit"
    path.write_bytes(bytes(data))
    return f"{name} has a flipped bit at byte {at}" if kind == "bit" else f"{name} is zero from byte {at}"


# A partial write


def counted(folder: Path) -> Counted:
    """Prepare an undisturbed run, and count the write boundaries (file changes) of each checkpoint save."""
    counts = [RehearsalFault(kind="count writes", step=step, until=step + 1) for step in COMMITS]
    plan, environment = faults.plan(folder / "plan", *counts)
    whole = rehearsal.rehearse(folder / "whole", environment, batches=faults.SOURCE)
    return Counted(whole, {one.step: int(plan.mark(one).read_text()) for one in counts})


def partial_write(made: Counted, folder: Path, chooser: Random) -> Struck:
    """Kill the rank at a random write boundary (file change) in a step that saves a checkpoint."""
    config = made.whole.copy(folder / "workspace", batches=faults.SOURCE)
    step = chooser.choice(COMMITS)
    boundary = chooser.randint(1, made.boundaries[step])
    kill = RehearsalFault(kind="kill at write", step=step, value=boundary)
    _, environment = faults.plan(folder / "plan", kill)
    status = warm_job.run(config, **environment)
    story, interval = timeline(config.directory.events), 3
    alert, after = gameday.fired(config, PARTIAL.alerts, "restart")
    restarts = story.of("restart")
    lost = [event["lost_steps"] for event in restarts]
    found = [
        rehearsal.finished(status),
        finding("the killed rank is restarted once", len(restarts), 1),
        Outcome(what=f"at most {interval} steps are redone", passed=all(n <= interval for n in lost), seen=f"{lost}"),
        finding("no committed checkpoint is rejected", [event["step"] for event in story.of("refused")], []),
        finding("no partially written file is left", _remains(config), []),
        *made.whole.end_state(config),
        *alert,
    ]
    return Struck(f"SIGKILL at boundary {boundary} of {made.boundaries[step]} in step {step}", tuple(found), after)


def _remains(config: RunConfig) -> list[str]:
    """Return the names of checkpoint folders without a commit record, and of temporary files."""
    run = config.directory
    known = {checkpoint.name(step) for step in checkpoint.committed(run)}
    folders = [path.name for path in run.checkpoints.iterdir() if path.is_dir() and path.name not in known]
    return sorted([*folders, *(path.name for path in run.checkpoints.glob(".*"))])


# A full disk


def fill_mechanism(made: Counted) -> str:
    """Return a description of how the disk is filled on this machine."""
    if can_mount():
        return f"a full tmpfs of {DISK_BYTES >> 20} MiB"
    return "RLIMIT_FSIZE of the rank, because this user cannot mount a tmpfs"


def full_disk(made: Counted, folder: Path, chooser: Random) -> Struck:
    """Fill the run's disk before or during a checkpoint save, free the space, and run the same command again."""
    config = made.whole.copy(folder / "workspace", batches=faults.SOURCE)
    size = checkpoint.stated_bytes(made.whole.config.directory, made.whole.config.total_steps)
    fault = _full(config, made, chooser, size)
    _, environment = faults.plan(folder / "plan", fault)
    run = config.directory
    with small_disk(run.root) if can_mount() else nullcontext():
        without_audit(config)
        failed, log = warm_job.run(config, **environment), run.log.read_text(errors="replace")
        disk = shutil.disk_usage(run.root)
        free: tuple[str, dict[str, str], float] = ("plinth_workspace_free_ratio", {}, disk.free / disk.total)
        alert, after = gameday.fired(config, FULL_DISK.alerts, "failed", [free])
        checkpoint.clean(run)
        newest, refused = checkpoint.newest_valid(run)
        faults.filler(run.root).unlink(missing_ok=True)
        status = warm_job.run(config)
        named = "DiskFullError" in log or "no space left" in log  # the system's message starts with a capital
        allowed = {max((known for known in COMMITS if known < fault.step), default=None), fault.step}
        seen = f"status {failed}, {'reported' if named else 'not reported'}"
        found = [
            Outcome(what="the job fails and reports the full disk", passed=failed in (5, 7) and named, seen=seen),
            Outcome(what="committed checkpoints load", passed=newest in allowed and not refused, seen=f"{newest}"),
            rehearsal.finished(status),
            *made.whole.end_state(config),
            *alert,
        ]
    when = f"at boundary {fault.value:.0f} of step {fault.step}" if fault.value else f"before step {fault.step}"
    return Struck(f"{fault.left} bytes free {when}; a checkpoint needs {size}", tuple(found), after)


def _full(config: RunConfig, made: Counted, chooser: Random, size: int) -> RehearsalFault:
    step, left = chooser.choice(COMMITS), chooser.randrange(size)
    boundary = chooser.choice([0, chooser.randint(1, made.boundaries[step])])
    if not can_mount():
        return RehearsalFault(kind="limit files", step=step, value=left // 4)
    root = str(config.directory.root)
    return RehearsalFault(kind="fill disk", step=step, value=boundary, left=left // 8 if boundary else left, place=root)


@contextmanager
def small_disk(folder: Path, size: int = DISK_BYTES) -> Iterator[None]:
    """Mount a file system of a fixed size at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    processes.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        processes.run(["umount", "-l", str(folder)], check=True)


def can_mount() -> bool:
    """Return True if this user can mount a file system."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if processes.run(command, capture_output=True).returncode:
            return False
        processes.run(["umount", folder], check=True)
    return True


CORRUPTED: Final = GameDay(
    name="corrupted-checkpoint",
    hypothesis="A damaged checkpoint is rejected with an error that names it, the run resumes from the newest intact "
    "checkpoint, and its end state equals that of an undisturbed run.",
    fault="In the newest one or two checkpoints, one file has a flipped bit or zeros, is truncated, or is deleted.",
    protection="every file is verified against its signed digest before a checkpoint is loaded",
    prepare=begin,
    play=corrupted_checkpoint,
    alerts=("CheckpointRefused",),
)

PARTIAL: Final = GameDay(
    name="partial-write",
    hypothesis="If a rank is killed while it writes a checkpoint, either the previous or the new checkpoint is "
    "complete, no partial one is visible, and at most one checkpoint interval is trained again.",
    fault="SIGKILL at one boundary of the rank's writes: a creation, a partial write, a flush, a rename, a deletion.",
    protection="a checkpoint is staged and renamed, and is valid only with its commit record",
    prepare=counted,
    play=partial_write,
    alerts=("RunRestarted",),
)

FULL_DISK: Final = GameDay(
    name="full-disk",
    hypothesis="If the disk fills during a save, the job ends with an error that reports it, and committed checkpoints "
    "stay valid. Once space is free, the same command continues to the same end state.",
    fault="Before a save or at a boundary of its writes, the disk has less free space than the checkpoint needs.",
    blast_radius=f"{OWN} For root, it also affects a tmpfs of {DISK_BYTES >> 20} MiB at the rehearsal's folder.",
    protection="files become visible only when they are complete, and a full disk has its own error",
    prepare=counted,
    play=full_disk,
    alerts=("JobFailed", "DiskNearlyFull"),
    mechanism=fill_mechanism,
)
