"""Checkpoints on disk. A checkpoint is either fully committed or does not exist.

    staging/step-00000100/             written here; never read; leftovers are deleted
      attempts.json                    the trainer's attestations of the attempts so far (attempts)
      looks.json                       latest probe scores, if any (validation.probe_curves)
      ranks/rank-00000.json            the files of a rank and their digests
      manifest.json                    the root: files of the run, and the digest of each rank's manifest (digest_tree)
    checkpoints/step-00000100/         the same directory after one rename
    checkpoints/step-00000100.json     the commit record: SHA-256 of the root, signed (commit_record)

Order: files, flush, manifests, flush, root, flush, rename, flush, commit record. A directory without a record comes
from an interrupted save and is deleted. A directory whose bytes differ from its record is refused with an error that
names it.

Does not belong here: the content of the files (snapshot); this module needs no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plinth.errors import CheckpointError, DiskFullError
from plinth.storage.atomic import named_failures, sync_directory, write_bytes
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.checkpoint import commit_record, digest_tree
from plinth.training.checkpoint.commit_record import Commit
from plinth.training.checkpoint.digest_tree import (
    MANIFEST,
    Beat,
    CheckpointRoot,
    File,
    RankFiles,
    RankManifest,
    differing,
    hash_files,
    listed,
    made,
    require_total,
    silent,
)
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.validation import probe_curves

#: The file of a checkpoint's state outside of tensors.
STATE = "state.json"

_NAME = re.compile(r"step-(\d{8})")


def name(step: int) -> str:
    """Return the directory name of the checkpoint of a step."""
    return f"step-{step:08d}"


def path(run: RunDirectory, step: int) -> Path:
    """Return the path of a step's checkpoint directory, which need not exist."""
    return run.checkpoints / name(step)


def committed(run: RunDirectory) -> list[int]:
    """Return the steps with a commit record, oldest first."""
    if not run.checkpoints.exists():
        return []
    records = (file for file in run.checkpoints.glob("step-*.json") if _NAME.fullmatch(file.stem))
    return sorted(int(file.stem.removeprefix("step-")) for file in records)


def kept(run: RunDirectory) -> list[int]:
    """Return the committed steps whose checkpoint folder still exists, oldest first."""
    return [step for step in committed(run) if (run.checkpoints / name(step)).is_dir()]


def stage(run: RunDirectory, step: int) -> Path:
    """Return an empty directory for the checkpoint of a step.

    Raises:
        DiskFullError: there is no room for a checkpoint as large as the last one.
    """
    folder = run.staging / name(step)
    _require_space(run)
    with named_failures(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder


def commit(
    run: RunDirectory,
    step: int,
    files: Sequence[File] | None = None,
    ranks: Sequence[RankFiles] = (),
    publish: Callable[[Sequence[File], bytes, bytes], object] | None = None,
) -> Commit:
    """Commit the staged files of a step as its checkpoint.

    Args:
        files: files of the run that the writers have already hashed and flushed. If `files` is given, the commit does
            not read files.
        ranks: the report of each rank's writer on its own files.
        publish: called with the files of the run, the root and the record before the commit on this machine, which has
            the files of its own ranks only. If it raises an error, nothing is committed.

    Raises:
        CheckpointError: the folder does not contain the files that the writers reported.
        DiskFullError, WorkspaceError, StorageError: the commit failed; no checkpoint becomes visible.
        SignatureError: this machine has no trainer key; no checkpoint becomes visible.
    """
    staged, target = run.staging / name(step), path(run, step)
    with named_failures(staged):
        own = []
        for item, content in _accounts(run, step).items():
            write_bytes(staged / item, content)
            own.append(made(item, len(content), hashlib.sha256(content).hexdigest()))
        written = hash_files(staged, listed(staged), flush=True) if files is None else [*files, *own]
        root = CheckpointRoot(step=step, files=tuple(sorted(written, key=lambda file: file.path)), ranks=tuple(ranks))
        here = root if publish is None else root.on_machine(staged)
        stated = {file.path: file.bytes for file in (*here.files, *(one.manifest for one in here.ranks))}
        require_total(staged, stated, here.total_files, here.total_bytes)
        data = digest_tree.root_bytes(root)
        write_bytes(staged / MANIFEST, data)
        for folder in sorted(_folders(staged)):
            sync_directory(folder)
        digest = hashlib.sha256(data).hexdigest()
        commit, record = commit_record.seal(run, step, digest, len(data) + root.total_bytes)
        if publish is not None:
            publish(root.files, data, record)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        record_path(run, step).unlink(missing_ok=True)  # a step that is repeated after a rollback
        if target.exists():  # refused or interrupted earlier, without a record
            shutil.rmtree(target)
        staged.rename(target)
        sync_directory(run.checkpoints)
    write_bytes(record_path(run, step), record)
    return commit


def _folders(staged: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(staged)]


def _accounts(run: RunDirectory, step: int) -> dict[str, bytes]:
    """Return the files about the run that each checkpoint contains: the trainer's attestations and the probe scores."""
    looks = probe_curves.kept(*_looks_before(run, step), run.events, step)
    own = {attempts.BUNDLE: attempts.bundle(run), probe_curves.LOOKS: looks}
    return {item: content for item, content in own.items() if content is not None}


def _looks_before(run: RunDirectory, step: int) -> tuple[bytes | None, int]:
    """Return the probe scores of the newest earlier checkpoint, and its step. If there is none, return None and 0."""
    for earlier in reversed([known for known in committed(run) if known < step]):
        with contextlib.suppress(CheckpointError, OSError):
            stated = {file.path: file.sha256 for file in read_root(run, earlier).files}
            expected = stated.get(probe_curves.LOOKS)
            found = (path(run, earlier) / probe_curves.LOOKS).read_bytes() if expected else None
            if found is None or hashlib.sha256(found).hexdigest() == expected:
                return found, earlier
    return None, 0


def verify(run: RunDirectory, step: int, beat: Beat = silent) -> Path:
    """Compare every byte of a committed checkpoint with its record, in this process, and return its directory.

    Raises:
        CheckpointError: the checkpoint was not committed by a trainer, is incomplete or changed, or has unlisted files.
        SignatureError: no root of trust is pinned on this machine.
    """
    folder, files = path(run, step), listed_files(run, step)
    present = set(listed(folder)) - {MANIFEST}
    expected = {file.path for file in files}
    if present != expected:
        raise CheckpointError(
            f"checkpoint {name(step)} lacks files that its manifest lists, or contains unlisted files",
            found=f"missing {sorted(expected - present)}, unknown {sorted(present - expected)}",
        )
    _compare(step, folder, files, beat, threads=4)
    return folder


def verify_share(run: RunDirectory, step: int, index: int, count: int, beat: Beat = silent) -> None:
    """Compare the files of reader `index` of `count` with their digests. Together the readers compare every listed
    file.

    Reader `index` compares the files of ranks `index`, `index + count`, and so on. If there are as many readers as
    ranks, each reader compares the files of its own rank. The first reader also compares the files of the run. Every
    reader compares `state.json`, because every reader loads it.

    Raises:
        CheckpointError, SignatureError: for the same reasons as in `verify`, but files that no manifest lists are not
            detected.
    """
    folder, root = path(run, step), read_root(run, step)
    files = [file for file in root.files if index == 0 or file.path == STATE]
    for stated in digest_tree.share(root, index, count):
        files += digest_tree.manifest_in(folder, stated, name(step)).files
    _compare(step, folder, files, beat)


def _compare(step: int, folder: Path, files: Sequence[File], beat: Beat, threads: int = 1) -> None:
    try:
        wrong = differing(folder, files, beat, threads)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {name(step)} lacks files that its manifest lists",
            found=error,
            expected="all files readable",
            remedy="the previous committed checkpoint is used; check the storage for faults",
        ) from error
    if wrong is not None:
        file, found = wrong
        raise _changed(step, file.path, found, f"{file.bytes} bytes, {file.digest}")


def digests(run: RunDirectory, step: int, folder: str = "") -> dict[str, str]:
    """Return the SHA-256 of each file in a checkpoint, or in one folder of it, by file name. Callers compare the
    digests when they load the files.

    Files that only ranks read have no SHA-256 and are left out.

    Raises:
        CheckpointError, SignatureError: for the same reasons as in `listed_files`.
    """
    start = f"{folder}/" if folder else ""
    files = listed_files(run, step)
    return {one.path.removeprefix(start): one.sha256 for one in files if one.sha256 and one.path.startswith(start)}


def listed_files(run: RunDirectory, step: int) -> list[File]:
    """Return the files of a committed checkpoint as its signed manifests list them. Only the manifests are read.

    Raises:
        CheckpointError: the checkpoint was not committed by a trainer, or a manifest has changed.
        SignatureError: no root of trust is pinned on this machine.
    """
    root = read_root(run, step)
    return digest_tree.every_file(root, rank_manifests(run, step, root.ranks), name(step))


def rank_manifests(run: RunDirectory, step: int, ranks: Sequence[RankFiles]) -> list[RankManifest]:
    """Return the manifests that the given ranks wrote for a checkpoint.

    Raises:
        CheckpointError: a manifest has changed or is missing.
    """
    return [digest_tree.manifest_in(path(run, step), one, name(step)) for one in ranks]


def read_root(run: RunDirectory, step: int) -> CheckpointRoot:
    """Return the root of a committed checkpoint and verify its signature.

    Raises:
        CheckpointError: the root was not committed by a trainer, has changed, or has the format of an earlier version.
        SignatureError: no root of trust is pinned on this machine.
    """
    folder = path(run, step)
    try:
        signed = record_path(run, step).read_bytes()
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {name(step)} is unreadable", found=error, expected="a commit record and a manifest"
        ) from error
    record = commit_record.verified(run, step, signed, str(record_path(run, step)))
    found = hashlib.sha256(data).hexdigest()
    if found != record.manifest_sha256:
        raise _changed(step, MANIFEST, found, record.manifest_sha256)
    return digest_tree.read_root(data, name(step))


def is_valid(run: RunDirectory, step: int) -> bool:
    """Return True if the checkpoint of a step is committed and every byte matches its record."""
    try:
        verify(run, step)
    except CheckpointError:
        return False
    return True


def newest_valid(
    run: RunDirectory, check: Callable[[RunDirectory, int], object] = verify
) -> tuple[int | None, list[tuple[int, CheckpointError]]]:
    """Return the newest committed step that passes `check`, and the newer steps that failed, with the reasons.

    Raises:
        CheckpointError: checkpoints are committed but none passes; training must not silently start over.
    """
    refused: list[tuple[int, CheckpointError]] = []
    for step in reversed(committed(run)):
        try:
            check(run, step)
        except CheckpointError as error:
            refused.append((step, error))
        else:
            return step, refused
    if refused:
        raise CheckpointError(
            f"no committed checkpoint in {run.checkpoints} can be trusted",
            found="; ".join(f"{name(step)}: {error.what}" for step, error in refused),
            expected="at least one checkpoint that matches its record",
            remedy="check the storage for faults; to train from the beginning, delete the directory `checkpoints`",
        )
    return None, refused


def refuse(run: RunDirectory, step: int) -> None:
    """Rename the commit record of a checkpoint, so that the checkpoint is ignored.

    The checkpoint's files stay on disk until the same step is saved again.
    """
    record_path(run, step).rename(run.checkpoints / f"{name(step)}.refused.json")


def refused(run: RunDirectory) -> list[int]:
    """Return the steps with a rejected checkpoint (see `refuse`), oldest first."""
    return sorted(int(file.name[5:13]) for file in run.checkpoints.glob("step-*.refused.json"))


def delete(run: RunDirectory, step: int) -> None:
    """Delete a checkpoint. The commit record is deleted first, so that a half-deleted directory is ignored.

    Raises:
        WorkspaceError, StorageError: the checkpoint cannot be deleted, or a folder of the run is a link.
    """
    run.require_no_links()
    with named_failures(run.checkpoints):
        record_path(run, step).unlink()
        uploaded_path(run, step).unlink(missing_ok=True)
        shutil.rmtree(path(run, step))


def uploaded_path(run: RunDirectory, step: int) -> Path:
    """Return the path of the file that marks a checkpoint as uploaded: a copy of its commit record."""
    return run.checkpoints / f"{name(step)}.uploaded.json"


def is_uploaded(run: RunDirectory, step: int) -> bool:
    """Return True if exactly this checkpoint was uploaded; an upload of an earlier save of the same step does not
    count."""
    note = uploaded_path(run, step)
    return note.exists() and note.read_bytes() == record_path(run, step).read_bytes()


def clean(run: RunDirectory) -> None:
    """Delete the leftovers of interrupted writers: the staging folder, and directories without a commit record.

    Raises:
        WorkspaceError: a folder of the run is a link.
    """
    run.require_no_links()
    shutil.rmtree(run.staging, ignore_errors=True)
    if run.checkpoints.exists():
        known = {name(step) for step in committed(run)}
        for folder in run.checkpoints.iterdir():
            kept_refused = (run.checkpoints / f"{folder.name}.refused.json").exists()
            if folder.is_dir() and folder.name not in known and not kept_refused:
                folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
            elif folder.name.endswith((".tmp", ".uploaded.json")) and folder.name.split(".")[0] not in known:
                folder.unlink(missing_ok=True)


def size_of_last(run: RunDirectory) -> int:
    """Return the size of the newest committed checkpoint in bytes, or 0 if there is none."""
    steps = committed(run)
    try:
        return stated_bytes(run, steps[-1]) if steps else 0
    except CheckpointError:  # from an earlier version; refused at the start of a run
        return 0


def stated_bytes(run: RunDirectory, step: int) -> int:
    """Return the size of a checkpoint in bytes according to its unverified record."""
    return commit_record.stated(record_path(run, step).read_bytes(), name(step)).bytes


def read_state(run: RunDirectory, step: int) -> dict[str, Any]:
    """Return `state.json` of a checkpoint that has been verified."""
    state: dict[str, Any] = json.loads((path(run, step) / STATE).read_bytes())
    return state


def require_identity(config: RunConfig, state: Mapping[str, Any]) -> None:
    """Raise an error if a saved state is not from a run with these settings.

    Raises:
        ResumeError: the state belongs to another run, or its run was configured otherwise.
    """
    configuration.require_identity(config, state["identity"], name(state["step"]), state["step"])


def record_path(run: RunDirectory, step: int) -> Path:
    """Return the path of the commit record of a step."""
    return run.checkpoints / f"{name(step)}.json"


def _changed(step: int, item: str, found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {name(step)}: {item} has changed since it was committed",
        found=found,
        expected=expected,
        remedy="the previous committed checkpoint is used; check the storage for faults",
    )


def _require_space(run: RunDirectory) -> None:
    needed = size_of_last(run)
    free = shutil.disk_usage(run.root).free if needed else 0
    if free < needed:
        raise DiskFullError(
            f"no room for another checkpoint in {run.checkpoints}",
            found=f"{free} bytes free",
            expected=f"at least {needed} free bytes, which is the size of the last checkpoint",
            remedy="free disk space or lower `training.checkpoints.keep_last`, then run the same command again",
        )
