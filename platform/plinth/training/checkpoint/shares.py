"""Checkpoints of a run in a shared workspace: each machine has the files of its own ranks, the bucket has all.

    runs/RUN/step-00000100.SAVE/…                 files of all ranks, the root manifest
    runs/RUN/step-00000100.SAVE.parts/            rank-00000.json: the report of each rank on its part
    runs/RUN/step-00000100.SAVE.json              the signed commit record

Each rank uploads its files, then its report. The leading rank's writer uploads the root and the record once all reports
are there, and lists the save in the run's head, which commits the checkpoint. The first rank of each other machine then
commits the same checkpoint on its disk. A save has its own number, so nothing is uploaded twice under one name.

Does not belong here: the claim and the head (shared_run.head), copies in another bucket (remote, upload).
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from plinth.errors import CheckpointError
from plinth.storage import atomic
from plinth.storage.atomic import sync_directory, write_bytes
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint, digest_tree
from plinth.training.checkpoint.digest_tree import MANIFEST, CheckpointRoot, File, differing, path_in
from plinth.training.checkpoint.remote import STREAMS, RemoteCheckpoints, named_errors
from plinth.training.config import RunConfig, layout_of
from plinth.training.directory import RunDirectory
from plinth.training.shared_run.head import SESSION, RunHead, SharedRun, patiently
from plinth.training.shared_run.shipping import is_shared, refresh
from plinth.training.telemetry.timeline import Pulse

#: Seconds between two checks of the bucket for parts or for the commit.
POLL_S = 0.3

#: Seconds for which a machine waits for the commit after its own parts are uploaded.
COMMIT_S = 600.0


#: Returns the ranks whose files are needed, for a folder with `state.json`, and the root.
NeededRanks = Callable[[Path, CheckpointRoot], Sequence[int]]


def needed_by(config: RunConfig, ranks: Sequence[int]) -> NeededRanks:
    """Return what a machine with these ranks needs of a checkpoint: their files, or those of all ranks if it is in
    another layout."""

    def needed(folder: Path, root: CheckpointRoot) -> Sequence[int]:
        layout = json.loads((folder / checkpoint.STATE).read_bytes()).get("layout")
        return ranks if layout == layout_of(config) else range(len(root.ranks))

    return needed


class SharedCheckpoint:
    """One save of a checkpoint, as its ranks' writers see it. An outage of the bucket delays them for some minutes
    before it is an error.

    Args:
        session: session of the supervisor whose ranks save.
        number: number of the save.
    """

    def __init__(self, run: RunDirectory, session: str, step: int, number: str) -> None:
        self._bucket = SharedCheckpoints(run, session)
        self._step, self._number, self._base = step, number, base_of(checkpoint.name(step), number)
        self._staged = run.staging / checkpoint.name(step)

    def put_part(self, rank: int, files: Sequence[File], report: bytes) -> None:
        """Upload the staged files of a rank, then its report on them."""
        patiently(lambda: self._bucket.put_files(self._base, self._staged, files))
        patiently(lambda: self._bucket.put(f"{self._base}.parts/{report_name(rank)}", report))

    def put_failure(self, rank: int, failure: bytes) -> None:
        """Report that the part of a rank will not arrive."""
        self._bucket.put(f"{self._base}.parts/{failure_name(rank)}", failure)

    def gather(self, folder: Path) -> None:
        """Copy the reports of all ranks that are not in a folder yet."""

        def one(name: str) -> None:
            write_bytes(folder / name, patiently(partial(self._bucket.fetched, f"{self._base}.parts/{name}")))

        there = patiently(lambda: self._bucket.names(f"{self._base}.parts/"))
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(one, [name for name in there if not (folder / name).exists()]))

    def publish(self, files: Sequence[File], root: bytes, record: bytes) -> None:
        """Upload the files of the run, the root and the record, and commit the save by listing it in the head.

        Raises:
            LaunchError: another supervisor has claimed the run. Nothing is committed.
        """
        name = checkpoint.name(self._step)
        patiently(lambda: self._bucket.put_files(self._base, self._staged, files))
        patiently(lambda: self._bucket.put(f"{self._base}/{MANIFEST}", root))
        patiently(lambda: self._bucket.put(f"{self._base}.json", record))
        patiently(lambda: self._bucket.commit(name, self._number))

    def retire(self, steps: Iterable[int]) -> None:
        """Remove earlier checkpoints from the bucket, and what interrupted saves have left there."""
        self._bucket.retire(steps)

    def wait_for_commit(self, limited: Callable[[float], float]) -> bool:
        """Return True once the save is committed, or False if it will not be: the leading rank has failed, another
        session has the run, or it did not happen for long.

        Args:
            limited: returns an earlier end of the wait (monotonic) than the given one, or the given one.
        """
        until, name = time.monotonic() + COMMIT_S, checkpoint.name(self._step)
        failed = f"{self._base}.parts/{failure_name(0)}"
        while time.monotonic() < (until := limited(until)):
            found = patiently(self._bucket.shared.read)
            if found is None or found.head.session != self._bucket.shared.session or found.head.ended:
                return False
            if found.head.commits.get(name) == self._number:
                return True
            if patiently(lambda: self._bucket.shared.objects.look_up(failed)) is not None:
                return False
            time.sleep(POLL_S)
        return False

    def adopt(self) -> None:
        """Commit the save on this machine, whose ranks have just written their files. If they already needed it, they
        have done so."""
        patiently(lambda: self._bucket.adopt_once(self._step, self._number, None))
        found = patiently(self._bucket.shared.read)
        if found is not None:
            self._bucket.forget(found.head)


class SharedCheckpoints(RemoteCheckpoints):
    """Checkpoints of one run in the bucket of its workspace."""

    def __init__(self, run: RunDirectory, session: str = "") -> None:
        shared = SharedRun.of(run, session)
        assert shared is not None
        super().__init__(f"{Workspace(run.workspace).uri}/runs", run.root.name)
        self.shared, self.directory = shared, run

    def put_files(self, base: str, staged: Path, files: Sequence[File]) -> None:
        """Upload staged files."""
        with named_errors(self.bucket), ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(lambda file: self._put_file(path_in(staged, file.path), f"{base}/{file.path}", file), files))

    def put(self, key: str, data: bytes) -> None:
        """Upload an object."""
        with named_errors(self.bucket):
            self._put(key, data)

    def fetched(self, key: str) -> bytes:
        """Return the content of an object."""
        with named_errors(self.bucket):
            return self._get(key)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects below a prefix, without it."""
        return [one.name.removeprefix(prefix) for one in self.shared.objects.every(prefix)]

    def commit(self, name: str, number: str) -> None:
        """List a save in the head."""
        self.shared.change(lambda head: _with_commits(head, {**head.commits, name: number}))

    def retire(self, steps: Iterable[int]) -> None:
        """Remove checkpoints from the head, then delete every save that the head does not list.

        The saves are listed first, while this session surely has the claim: those of a later one are not among them.
        """
        folders = self.shared.objects.folders("step-")
        head = self.drop(steps)
        kept = {base_of(name, number) for name, number in head.commits.items()}
        for folder in folders:
            base = folder.removesuffix(".parts")
            if base not in kept or folder != base:
                prefix = f"{folder}/" if base in kept else base
                with ThreadPoolExecutor(STREAMS) as pool:
                    list(pool.map(lambda name: self.shared.objects.remove(name), self._keys(prefix)))

    def _keys(self, prefix: str) -> list[str]:
        return [one.name for one in self.shared.objects.every(prefix)]

    def drop(self, steps: Iterable[int]) -> RunHead:
        """Remove checkpoints from the head, and return it."""
        names = {checkpoint.name(step) for step in steps}

        def without(head: RunHead) -> RunHead:
            return _with_commits(head, {name: one for name, one in head.commits.items() if name not in names})

        return self.shared.change(without)

    def adopt(self, step: int, number: str, needed: NeededRanks | None) -> None:
        """Commit a checkpoint on this machine with the files of some ranks. Files that are here already are not
        fetched.

        Args:
            needed: returns these ranks for a folder with `state.json`, and the root. If None, the ranks of this machine
                have just written their staged files.

        Raises:
            CheckpointError: no trainer signed the record, a file is missing, or a file differs from its digest.
            SignatureError: no root of trust is pinned on this machine.
            StorageError: the bucket is unreachable.
        """
        run, name = self.directory, checkpoint.name(step)
        base, record = base_of(name, number), checkpoint.record_path(run, step)
        target, staged = checkpoint.path(run, step), run.staging / name
        with named_errors(self.bucket), ThreadPoolExecutor(STREAMS) as pool:
            there = self._located(run, step, base)
            if record.exists() and record.read_bytes() == there.record and (target / MANIFEST).exists():
                staged = target  # it has the files of other ranks
            staged.mkdir(parents=True, exist_ok=True)
            sources = (staged, target)
            fetch = partial(self._complete, pool, staged, sources, base)
            fetch(there.root.files)
            if needed is not None:
                ranks = [there.root.ranks[rank] for rank in needed(staged, there.root)]
                fetch([one.manifest for one in ranks])
                fetch([file for one in ranks for file in digest_tree.manifest_in(staged, one, name).files])
        write_bytes(staged / MANIFEST, there.manifest)
        if staged == target:
            return
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)
        sync_directory(run.checkpoints)
        write_bytes(record, there.record)

    def adopt_once(self, step: int, number: str, needed: NeededRanks | None, *, compare: bool = False) -> bool:
        """Commit a checkpoint like `adopt`, unless this machine has it. Return True if it had not. Another process may
        do the same.

        Args:
            compare: True if files of this machine may be damaged, so their digests are compared.
        """
        with atomic.locked(self.directory.root / "adopt.lock"):
            if not compare and self._is_here(step, number, needed):
                return False
            self.adopt(step, number, needed)
        return True

    def committed(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""
        found = self.shared.read()
        return sorted(int(name.removeprefix("step-")) for name in found.head.commits) if found else []

    def forget(self, head: RunHead) -> None:
        """Delete the checkpoints on this machine that the head does not list."""
        for step in checkpoint.committed(self.directory):
            if checkpoint.name(step) not in head.commits:
                checkpoint.path(self.directory, step).mkdir(exist_ok=True)  # a reader may have the record only
                checkpoint.delete(self.directory, step)

    def upload_earlier(self) -> None:
        """Commit the checkpoints of this machine in the bucket, all at once, if they are from a version that kept them
        here only."""
        found, run, commits = self.shared.read(), self.directory, dict[str, str]()
        if found is None or found.head.commits:
            return
        for step in filter(partial(checkpoint.is_valid, run), checkpoint.committed(run)):
            name, number = checkpoint.name(step), uuid.uuid4().hex[:16]
            base, folder = base_of(name, number), checkpoint.path(run, step)
            self.put_files(base, folder, checkpoint.listed_files(run, step))
            self.put(f"{base}/{MANIFEST}", (folder / MANIFEST).read_bytes())
            self.put(f"{base}.json", checkpoint.record_path(run, step).read_bytes())
            commits[name] = number
        if commits:
            self.shared.change(lambda head: _with_commits(head, commits))

    def sync(self, config: RunConfig, ranks: Sequence[int]) -> list[int]:
        """Make the checkpoints of this machine those of the head, with the files that its ranks need, and return the
        steps that were fetched. The newest comes first. A checkpoint in another layout is fetched with the files of all
        ranks. No rank of this machine is alive.

        Raises:
            CheckpointError, SignatureError, StorageError: for the same reasons as in `adopt`.
        """

        found, fetched = self.shared.read(), []
        if found is None:
            return []
        self.forget(found.head)
        for name in sorted(found.head.commits, reverse=True):
            step = int(name.removeprefix("step-"))
            if self.sync_one(step, needed_by(config, ranks)):
                fetched.append(step)
        return fetched

    def sync_one(self, step: int, needed: NeededRanks, *, compare: bool = False) -> bool:
        """Fetch what this machine lacks of one checkpoint, as in `adopt_once`. Return True if it lacked something."""
        found, name = self.shared.read(), checkpoint.name(step)
        if found is None or name not in found.head.commits:
            return False
        return self.adopt_once(step, found.head.commits[name], needed, compare=compare)

    def _is_here(self, step: int, number: str, needed: NeededRanks | None) -> bool:
        """Return True if this machine has committed this save with the needed files. Sizes are compared; ranks compare
        digests when they load."""
        run, name = self.directory, checkpoint.name(step)
        record, folder = checkpoint.record_path(run, step), checkpoint.path(run, step)
        try:
            if record.read_bytes() != self.fetched(f"{base_of(name, number)}.json"):
                return False
            root = checkpoint.read_root(run, step)
            ranks = [root.ranks[rank] for rank in needed(folder, root)] if needed is not None else []
            own = (file for one in ranks for file in digest_tree.manifest_in(folder, one, name).files)
            return all(path_in(folder, file.path).stat().st_size == file.bytes for file in (*root.files, *own))
        except (OSError, CheckpointError):
            return False

    def _complete(
        self, pool: ThreadPoolExecutor, staged: Path, sources: Sequence[Path], base: str, files: Sequence[File]
    ) -> None:
        """Bring files into the staging folder: from a folder of this machine that has them, or from the bucket."""
        beat = Pulse(self.directory.events)

        def one(file: File) -> None:
            place = path_in(staged, file.path)
            for source in sources:
                known = path_in(source, file.path)
                if known.is_file() and differing(source, [file], beat) is None:
                    if source != staged:
                        place.parent.mkdir(parents=True, exist_ok=True)
                        place.unlink(missing_ok=True)
                        os.link(known, place)
                    return
            self._get_file(f"{base}/{file.path}", staged, file, beat)

        list(pool.map(one, sorted(files, key=lambda file: -file.bytes)))


def _with_commits(head: RunHead, commits: Mapping[str, str]) -> RunHead:
    return head.model_copy(update={"commits": dict(sorted(commits.items()))})


def base_of(name: str, number: str) -> str:
    """Return the name of a save in the bucket."""
    return f"{name}.{number}"


def report_name(rank: int) -> str:
    """Return the name of a rank's report on its part."""
    return f"rank-{rank:05d}.json"


def failure_name(rank: int) -> str:
    """Return the name of the report that a rank's part will not arrive."""
    return f"rank-{rank:05d}.failed"


def fetch_whole(config: RunConfig, step: int, *, state_only: bool = False) -> None:
    """Fetch a checkpoint of a shared run with the files of all ranks, unless this machine has it. Do nothing if the
    workspace is a folder, or the run has no such checkpoint.

    Args:
        state_only: fetch the files of the run without those of ranks.

    Raises:
        CheckpointError, SignatureError, StorageError: the checkpoint cannot be fetched, or cannot be trusted.
    """
    if not is_shared(config.directory) or atomic.held(config.directory.lock):
        return
    refresh(config.directory)
    with atomic.locked(config.directory.root / "fetch.lock"):  # another command may need the same checkpoint
        SharedCheckpoints(config.directory).sync_one(
            step, lambda folder, root: range(0 if state_only else len(root.ranks))
        )


def fetch_share(
    config: RunConfig, run: RunDirectory, step: int, ranks: Sequence[int], *, compare: bool = False
) -> None:
    """Fetch what this machine lacks of a checkpoint that its ranks are about to load: a spare may have just taken the
    place of a lost node, the leading rank's machine may be the first that has committed the save, or the run may be
    audited on another machine. With `compare`, replace damaged files.

    Raises:
        CheckpointError, SignatureError, StorageError: the checkpoint cannot be fetched, or cannot be trusted.
    """
    patiently(lambda: SharedCheckpoints(run).sync_one(step, needed_by(config, ranks), compare=compare))


def prepare_machine(config: RunConfig, ranks: Sequence[int], *, checkpoints: bool = True) -> None:
    """Bring the copy of a shared run on a machine other than node 0's up to date, before its ranks start. Do nothing if
    the workspace is a folder.

    Args:
        checkpoints: False for ranks that replace others. They take their state from memory, or fetch one checkpoint.

    Raises:
        PlinthError: the bucket is unreachable, or a file in it cannot be trusted.
    """
    run = config.directory
    found = patiently(lambda: refresh(run, own=True))
    if found is not None:
        os.environ[SESSION] = found.head.session
        if checkpoints:
            patiently(lambda: SharedCheckpoints(run, found.head.session).sync(config, ranks))
