"""The workspace: one directory that holds all state of all runs of one installation.

store/       content store (DVC layout: files/md5/ab/cdef…)
records/     step cache
manifests/   manifests by digest
refs/        asset key -> digest of its published manifest
runs/        training runs: config, events.jsonl, checkpoints, logs
models/      materialised, signed model directories; signatures and statements lie beside them
approvals/   signed approval statements
releases/    signed records of promotions and rollbacks
reviews/     labels of reviewers, only ever added to
taint/       what was marked as unfit, by whom and why; only ever added to
keys/        signing keys made on first use
mlflow/      SQLite database and artifacts of the local MLflow server
dagster/     DAGSTER_HOME
reports/     self-contained pages
input/       where recipes look for relative source paths (the demo's harvest lands here)
tmp/         staging; may be deleted whenever nothing runs
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plinth.errors import WorkspaceError
from plinth.storage import locks
from plinth.storage.atomic import named_failures

FOLDERS = (
    "store",
    "records",
    "manifests",
    "refs",
    "runs",
    "models",
    "approvals",
    "releases",
    "taint",
    "keys",
    "mlflow",
    "dagster",
    "reports",
    "input",
    "tmp",
)

LEFT_OVER_AFTER_S = 24 * 3600.0


class Workspace:
    """Paths of a workspace. Creating the object touches nothing; `ensure` makes the folders."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.store = self.root / "store"
        self.records = self.root / "records"
        self.manifests = self.root / "manifests"
        self.refs = self.root / "refs"
        self.runs = self.root / "runs"
        self.models = self.root / "models"
        self.approvals = self.root / "approvals"
        self.releases = self.root / "releases"
        self.taint = self.root / "taint"
        self.keys = self.root / "keys"
        self.mlflow = self.root / "mlflow"
        self.dagster = self.root / "dagster"
        self.reports = self.root / "reports"
        self.input = self.root / "input"
        self.tmp = self.root / "tmp"

    def ensure(self) -> Workspace:
        """Make the folders and prove that they can be written.

        Raises:
            WorkspaceError: when a folder cannot be made or written.
        """
        with named_failures(self.root):
            for folder in FOLDERS:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            self.keys.chmod(0o700)
        for folder in FOLDERS:
            if not os.access(self.root / folder, os.W_OK | os.X_OK):
                raise WorkspaceError(
                    f"cannot write the workspace {self.root}",
                    found=f"{folder}/ is not writable",
                    expected="a writable directory",
                    remedy="fix its permissions or choose another --workspace",
                )
        return self

    @contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Hold the workspace for one writer; the lock dies with the process.

        Raises:
            WorkspaceError: when another process holds it.
        """
        path = self.root / "lock"
        fd = locks.try_take(path, owner=f"process {os.getpid()}: {purpose}")
        if fd is None:
            raise WorkspaceError(
                f"the workspace {self.root} is in use",
                found=locks.owner(path) or "a lock without an owner's name",
                expected="one writing command at a time",
                remedy="wait for it to end, or use another --workspace",
            )
        try:
            self._sweep()
            yield
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Remove what killed processes left in staging; a day is longer than anything is staged."""
        for folder in (self.store / "staging", self.tmp):
            for path in folder.glob("*"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > LEFT_OVER_AFTER_S:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
