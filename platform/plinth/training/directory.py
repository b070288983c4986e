"""Paths of a run's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from plinth.storage.atomic import require_no_link


class RunDirectory:
    """Paths of one run. Creating the object reads and writes no file.

    config.json     the resolved configuration
    amended.json    amended configuration that waits for the owner's signature
    handle.json     handle of the submitted job, used to find the job again
    allowance.json  rank-seconds that the ledger grants the run's jobs, if limited
    forecast.json   the planner's prediction of a step, before the first job
    measured.json   measurements of the ended run, used by later plans
    lock            locked by the supervisor and its ranks while any of them is alive
    node-0001.lock  locked by the supervisor of node 1 and the ranks of an external trainer there
    rendezvous.json address of node 0 and secret of its job, for the other nodes
    job.log         standard output and error of supervisor and ranks
    events.jsonl    the timeline
    result.json     how the job ended, written last
    upgrade.json    request to compare the next job's code with the code that trained the run
    resume.json     evidence that a resumed run equals the uninterrupted one
    contracts/      0001.json …: launch contracts, signed by the run's owner before the start
    attempts/       0001.json …: signed attestations, one per start of the ranks
    audits/         0001.json …: all evidence of exact resumes, newest last
    checkpoints/    step-00000100/ and its commit record step-00000100.json
    means/          signed attestations of averages of the run's checkpoints, named by a prefix of the digest
    staging/        checkpoints in progress; never read
    profiles/       requests for traces, and the traces: 0001.json, 0001-steps-100-103-rank-0000.json.gz …
    sinks/          bookmarks and files of sinks: tensorboard/, wandb/, plinth.prom
    hangs/          0001/ …: stacks and collectives of ranks that hung, captured before they were killed
    federated/      step-00000500.json …: signed federated round; its weights from other sites were adopted after a step
    session         session of this machine's last supervisor in a shared workspace; `head.tag`, `head.seen`: the head
    logs/           SESSION.log …: logs of jobs on other machines, copied from the bucket of a shared workspace
    devices/        node-0000.jsonl …: samples of the GPUs of each node
    writers/        locks of the writer processes
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.workspace = self.root.absolute().parent.parent
        self.config = self.root / "config.json"
        self.amended = self.root / "amended.json"
        self.handle = self.root / "handle.json"
        self.allowance = self.root / "allowance.json"
        self.forecast = self.root / "forecast.json"
        self.measured = self.root / "measured.json"
        self.lock = self.root / "lock"
        self.rendezvous = self.root / "rendezvous.json"
        self.log = self.root / "job.log"
        self.events = self.root / "events.jsonl"
        self.result = self.root / "result.json"
        self.upgrade = self.root / "upgrade.json"
        self.evidence = self.root / "resume.json"
        self.contracts = self.root / "contracts"
        self.attempts = self.root / "attempts"
        self.audits = self.root / "audits"
        self.checkpoints = self.root / "checkpoints"
        self.means = self.root / "means"
        self.staging = self.root / "staging"
        self.writers = self.root / "writers"
        self.profiles = self.root / "profiles"
        self.hangs = self.root / "hangs"
        self.devices = self.root / "devices"
        self.federated = self.root / "federated"

    def node_lock(self, node: int) -> Path:
        """Return the path of the lock of a node other than node 0."""
        return self.root / f"node-{node:04d}.lock"

    def require_no_links(self) -> None:
        """Raise an error if the run's folder, or a folder in which files are deleted, is a symbolic link.

        Raises:
            WorkspaceError: one of these folders is a link.
        """
        require_no_link(self.root, self.checkpoints, self.staging, self.writers, self.hangs)

    def reopen(self) -> None:
        """Remove the result of the last job before another job starts. This changes the modification time of `runs/`,
        like the creation of a run.

        If this time is unchanged, no ended run was resumed, so a watcher can skip the files of ended runs.
        """
        if self.result.exists():
            self.result.unlink(missing_ok=True)
            with suppress(OSError):  # a file system without times of folders
                os.utime(self.root.parent)


def without_result(runs: Path) -> Iterator[RunDirectory]:
    """Yield the runs that have a submitted job and no result, sorted by name. Only such runs can have a live job.

    No file is opened: a workspace may have a hundred thousand runs.
    """
    try:
        folder = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:  # names relative to the folder, so the kernel resolves the folder's path once and not for each run
        found = [
            name
            for name in sorted(os.listdir(folder))
            if not os.access(f"{name}/result.json", os.F_OK, dir_fd=folder)
            and os.access(f"{name}/handle.json", os.F_OK, dir_fd=folder)
        ]
    finally:
        os.close(folder)
    yield from (RunDirectory(runs / name) for name in found)
