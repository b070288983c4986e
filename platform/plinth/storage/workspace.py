"""Workspace: one directory with all state of all runs of one installation.

    store/       content store (DVC layout: files/md5/ab/cdef…)
    records/     step cache
    manifests/   manifests by digest
    refs/        asset key -> digest of its published manifest
    runs/        training runs: config, events.jsonl, checkpoints, logs
    models/      materialized, signed model directories; with signatures and statements
    approvals/   signed approval statements
    logins/      signed statements on tags of approvals set by logged-in users, numbered
    releases/    signed records of promotions and rollbacks
    trials/      the owner's metrics of canaries, one file per trial
    reviews/     labels of reviewers, append-only
    exclusions/  removed documents, signed and chained; excluded from every later snapshot
    takedown/    signed reports on removals
    taint/       signed taints and their lifting; append-only
    trust/       versions of the root of trust; valid if they follow from the pinned root, stored elsewhere
    policies/    signed gate policies
    attestations/ signed evidence about checkpoints
    papers/      signatures of compliance under cards and documents
    audit/       signed entries of every decision and every refusal, numbered
    providers/   signed statements of providers about releases, numbered
    feed/        signed notices for consumers, numbered
    consumers/   signed enrollments of services and fine-tuned models
    impact/      the links between all manifests, for `plinth release impact`; a rebuildable cache
    mlflow/      SQLite database and artifacts of the local MLflow server
    dagster/     databases and logs of Dagster
    gamedays/    signed records of game days, numbered
    qualifications/  signed records of `plinth qualify`, numbered
    reports/     self-contained pages
    experiments/ references, costs and records of the arms of experiments; their outputs are in the common store
    budget/      settings of the budget, and the ledger of costs and limits
    assets.jsonl arrivals of sources, checks and publications of assets, with their times
    pins/        manifests kept on request, with the requester
    retention/   unreferenced objects at the last scan; in a shared workspace also the references of each machine
    launch/      submission rate of each launcher
    costs/       cost of the last materialization of each asset, for `plinth corpus scale`
    input/       root of relative source paths in recipes (also of the demo corpus)
    tmp/         staging; deletable while nothing runs

A *shared* workspace is an `s3://` prefix with store, records, manifests, refs, runs, pins, retention, exclusions and
input. Each machine has a folder for it, whose file `location` has the prefix, with a cache of the store, copies of the
runs, and everything else. Machines share no disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from plinth import private
from plinth.errors import WorkspaceError
from plinth.storage import atomic
from plinth.storage.atomic import named_failures, require_no_link, write_bytes
from plinth.storage.objects import Folder, Objects, S3Objects

FOLDERS = (
    "store", "records", "manifests", "refs", "runs", "models", "approvals", "releases", "taint", "trust", "policies",
    "attestations", "mlflow", "dagster", "reports", "input", "tmp",
)  # fmt: skip

LEFT_OVER_AFTER_S = 24 * 3600.0
#: File with the URI, in the folder of a shared workspace.
LOCATION = "location"
#: Variable with the parent of a machine's folders of shared workspaces.
CACHE_VARIABLE = "PLINTH_CACHE"
#: Variable with the folder of the pinned root and keys, instead of the workspace's own below the home directory.
TRUST_VARIABLE = "PLINTH_TRUST"


def folder_of(location: str) -> Path:
    """Return this machine's folder of a workspace. For a shared workspace, the folder is created if needed.

    Args:
        location: a path, or `s3://bucket/prefix`.

    Raises:
        WorkspaceError: the scheme is not supported, or the folder cannot be created.
    """
    if "://" not in location:
        return Path(location)
    uri = location.rstrip("/")
    if not re.fullmatch(r"s3://[^/]+(/[^/]+)*", uri):
        raise WorkspaceError(f"a workspace cannot be at {location}", expected="a folder, or s3://bucket/prefix")
    folder = cache_folder() / _folder_name(uri)
    if not (folder / LOCATION).exists():
        write_bytes(folder / LOCATION, uri.encode())
    return folder


def _folder_name(uri: str) -> str:
    """Return the name of a machine's folder for a shared workspace."""
    short = re.sub(r"[^A-Za-z0-9.]+", "-", uri.removeprefix("s3://"))[:60]
    return f"{short}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def cache_folder() -> Path:
    """Return the parent of this machine's folders of shared workspaces."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "plinth").absolute()


def trust_home() -> Path:
    """Return the parent of this machine's trust folders, except for a trust folder that the environment sets."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "plinth" / "trust"


def _trust_folder(place: str) -> Path:
    short = re.sub(r"[^A-Za-z0-9.]+", "-", place).strip("-")[-60:]
    return trust_home() / f"{short}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


class Workspace:
    """Paths of a workspace. Creating the object creates no files; `ensure` creates the folders."""

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
        self.trust = self.root / "trust"
        self.policies = self.root / "policies"
        self.attestations = self.root / "attestations"
        self.mlflow = self.root / "mlflow"
        self.dagster = self.root / "dagster"
        self.reports = self.root / "reports"
        self.costs = self.root / "costs"
        self.tmp = self.root / "tmp"
        self._branch = ""

    def branch(self, name: str) -> Workspace:
        """Return this workspace with its own references and costs below `experiments/NAME`; all else is shared."""
        made = Workspace(self.root)
        made._branch = f"experiments/{name}"
        made.refs, made.costs = made.root / made._branch / "refs", made.root / made._branch / "costs"
        return made

    @property
    def experiment(self) -> str:
        """Name of the experiment of this branch; empty for the workspace itself."""
        return self._branch.removeprefix("experiments/").partition("/")[0] if self._branch else ""

    @cached_property
    def uri(self) -> str:
        """URI of a shared workspace; empty for a folder.

        Raises:
            WorkspaceError: the URI in the file does not match the folder's name; another user may have changed it.
        """
        try:
            found = (self.root / LOCATION).read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        if _folder_name(found) not in (self.root.name, self.root.resolve().name):
            raise WorkspaceError(
                f"{self.root / LOCATION} does not match the name of its folder",
                found=found,
                expected=f"no such file, or a folder with the name {_folder_name(found)}",
                remedy="delete the file, or pass the URI of the shared workspace: -w s3://BUCKET/PREFIX",
            )
        return found

    @property
    def places(self) -> tuple[str, ...]:
        """Names under which this machine remembers the workspace: its URI, or its folder with links resolved.

        If the unresolved path differs, it is returned second, because earlier versions used it.
        """
        return tuple(dict.fromkeys((self.uri or os.path.realpath(self.root), self.uri or str(self.root))))

    @property
    def trust_folder(self) -> Path:
        """Folder of this machine's trust in the workspace: the pinned root, keys and the workers' secret."""
        if given := os.environ.get(TRUST_VARIABLE):
            return Path(given).absolute()
        folders = [_trust_folder(place) for place in self.places]
        return next((folder for folder in folders if folder.exists()), folders[0])

    @property
    def input(self) -> Path | str:
        """Root of relative source paths: a folder, or a prefix of the shared workspace."""
        return f"{self.uri}/input" if self.uri else self.root / "input"

    def objects(self, folder: str) -> Objects:
        """Return the named objects in a folder of the workspace (references, records or manifests), local or remote."""
        own = f"{self._branch}/{folder}" if self._branch and folder == "refs" else folder
        return S3Objects(f"{self.uri}/{own}") if self.uri else Folder(self.root / own)

    def ensure(self) -> Workspace:
        """Create the folders, for the current user only (`private.mask`), and check that they are writable.

        Raises:
            WorkspaceError: a folder cannot be created or written, or is a link although files are deleted there.
        """
        require_no_link(*self._staging)
        with named_failures(self.root):
            for path in (self.root, *(self.root / name for name in FOLDERS)):
                if not path.exists():
                    path.mkdir(parents=True, exist_ok=True)
                    path.chmod(0o777 & ~private.mask())
        for folder in FOLDERS:
            if not os.access(self.root / folder, os.W_OK | os.X_OK):
                raise WorkspaceError(
                    f"cannot write the workspace {self.root}",
                    found=f"{folder}/ is not writable",
                    expected="a writable directory",
                    remedy="fix the permissions of the folder, or choose another --workspace",
                )
        return self

    @property
    def _staging(self) -> tuple[Path, Path]:
        return self.store / "staging", self.tmp

    @contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Lock the workspace for one writing command; the lock ends with the process.

        Raises:
            WorkspaceError: another process holds the lock.
        """
        path = self.root / "lock"
        fd = atomic.try_take(path, owner=f"process {os.getpid()}: {purpose}")
        if fd is None:
            raise WorkspaceError(
                f"the workspace {self.root} is in use",
                found=atomic.owner(path) or "a lock without an owner's name",
                expected="one writing command at a time",
                remedy="wait until the other process ends, or use another --workspace",
            )
        try:
            self._sweep()
            yield
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Remove staging files of killed processes; one day is longer than any staging takes."""
        require_no_link(*self._staging)
        for folder in self._staging:
            for path in folder.glob("*"):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > LEFT_OVER_AFTER_S:
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
