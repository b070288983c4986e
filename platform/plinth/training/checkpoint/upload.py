"""Upload of committed checkpoints during training, and restore from the bucket on a machine without checkpoints.

`python -m plinth.training.checkpoint.upload CONFIG` follows the run's checkpoints and uploads each, newest first, with
exponential backoff after failures. The supervisor starts this process. At the end of the run the supervisor writes a
line to the process's standard input, which tells it to finish. The process exits when its standard input closes. With
`--fetch STEP NODE NODES` the process fetches that node's part of a checkpoint instead. Training never waits for an
upload, because retention keeps checkpoints that are not yet uploaded. The file `step-….uploaded.json` next to a
checkpoint marks it as uploaded.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from plinth import processes
from plinth.errors import CheckpointError, MissingError, PlinthError
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.remote import OtherNodes, RemoteCheckpoints
from plinth.training.checkpoint.shares import prepare_machine
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import Timeline

#: First and longest pause after failures, in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0

#: Seconds between checks for new checkpoints.
POLL_S = 0.5

#: Consecutive failures after which the remaining uploads are abandoned at the end of a run.
LAST_TRIES = 4


class UploadLoop:
    """Loop that uploads the committed checkpoints of one run."""

    def __init__(self, config: RunConfig, remote: RemoteCheckpoints) -> None:
        self.config, self.run, self.remote = config, config.directory, remote
        self.events, self.finishing = Timeline(self.run.events), threading.Event()
        self._failures = 0
        self._withdrawn: set[int] = set()

    def follow(self) -> bool:
        """Upload checkpoints until the supervisor tells the process to finish. Return True if all checkpoints are in
        the bucket."""
        while True:
            self._withdraw()
            waiting = [step for step in checkpoint.committed(self.run) if not checkpoint.is_uploaded(self.run, step)]
            if not waiting and self.finishing.is_set():
                return True
            if waiting:
                self._upload(waiting[-1])
                if self._failures >= LAST_TRIES and self.finishing.is_set():
                    return False
            self._pause()

    def _withdraw(self) -> None:
        """Withdraw rejected checkpoints from the bucket, so that no other machine starts from them."""
        for step in checkpoint.refused(self.run):
            if step in self._withdrawn or step in checkpoint.committed(self.run):  # saved again meanwhile
                continue
            try:
                was_there = self.remote.withdraw(step)
            except PlinthError as error:
                self._failures += 1
                reason = f"withdrawing: {error.what}"
                self.events.append("upload_failed", step=step, tries=self._failures, reason=reason)
                return
            checkpoint.uploaded_path(self.run, step).unlink(missing_ok=True)
            self._withdrawn.add(step)
            if was_there:
                self.events.append("withdrawn", step=step, durable=True)

    def _upload(self, step: int) -> None:
        begun = time.monotonic()
        try:
            size = self.remote.upload(self.run, step)
        except MissingError:
            return  # deleted by retention meanwhile
        except PlinthError as error:
            self._failures += 1
            reason, retry_s = error.brief, self._pause_s()
            self.events.append("upload_failed", step=step, tries=self._failures, reason=reason, retry_s=retry_s)
            return
        self._failures = 0
        self._withdrawn.discard(step)
        seconds = round(time.monotonic() - begun, 3)
        self.events.append("uploaded", step=step, bytes=size, seconds=seconds, durable=True)

    def _pause(self) -> None:
        until = time.monotonic() + (self._pause_s() if self._failures else POLL_S)
        while time.monotonic() < until and not (self.finishing.is_set() and not self._failures):
            time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))

    def _pause_s(self) -> float:
        longest = FIRST_PAUSE_S if self.finishing.is_set() else LONGEST_PAUSE_S
        return float(min(longest, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 20)))


class Uploader:
    """The supervisor's handle for the upload process."""

    def __init__(self, config: RunConfig, config_path: Path) -> None:
        self._config, self._path = config, config_path
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")

    def keep_alive(self) -> None:
        """Start the process, or restart it if it has ended; restarts are rate-limited."""
        alive = self._process is not None and self._process.poll() is None
        if not alive and time.monotonic() - self._started > FIRST_PAUSE_S * 30:
            self._start()

    def finish(self, hurry: Callable[[], bool]) -> None:
        """Upload the remaining checkpoints, then end the process. Once `hurry()` is true, wait no longer than the
        recipe's grace period."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"finish\n")
            process.stdin.flush()
        deadline = float("inf")
        while process.poll() is None and time.monotonic() < deadline:
            if hurry():
                deadline = min(deadline, time.monotonic() + self._config.supervision.grace_s)
            time.sleep(POLL_S / 5)
        process.stdin.close()
        process.wait()

    def _start(self) -> None:
        command = processes.python("plinth.training.checkpoint.upload", str(self._path))
        self._process = processes.start(command, *processes.STORES, *processes.KEYS, stdin=subprocess.PIPE)
        self._started = time.monotonic()


def restore(config: RunConfig, others: OtherNodes | None = None) -> int | None:
    """Download the newest complete checkpoint from the bucket together with `others`, commit it on this machine, and
    return its step.

    Raises:
        StorageError: the bucket is unreachable. It may contain checkpoints, and the run must not start over.
        CheckpointError: the bucket has checkpoints, but all differ from their records.
    """
    assert config.checkpoints.upload is not None
    remote, run = RemoteCheckpoints(config.checkpoints.upload, config.run_id), config.directory
    refused: list[CheckpointError] = []
    for step in reversed(remote.steps()):
        try:
            remote.download(run, step, others)
        except CheckpointError as error:
            refused.append(error)
            Timeline(run.events).append("refused", step=step, checkpoint=checkpoint.name(step), reason=str(error))
        else:
            return step
    if refused:
        raise refused[0]
    return None


def fetch_command(config_path: Path, step: int, node: int, nodes: int) -> list[str]:
    """Return the command that fetches a node's part of a checkpoint."""
    words = ("--fetch", *map(str, (step, node, nodes)))
    return processes.python("plinth.training.checkpoint.upload", str(config_path), *words)


def main() -> int:
    """Upload the checkpoints of the run named on the command line, or fetch a node's part of one. Return 0 if all
    transfers are complete."""
    config = configuration.load(sys.argv[1])
    if "--fetch" in sys.argv:
        return _fetch(config, *map(int, sys.argv[3:]))
    assert config.checkpoints.upload is not None
    remote = RemoteCheckpoints(config.checkpoints.upload, config.run_id)
    os.nice(10)
    following = UploadLoop(config, remote)
    threading.Thread(target=_read_orders, args=(following,), daemon=True).start()
    return 0 if following.follow() else 1


def _fetch(config: RunConfig, step: int, node: int, nodes: int) -> int:
    try:
        if config.checkpoints.upload is not None:
            RemoteCheckpoints(config.checkpoints.upload, config.run_id).fetch(config.directory, step, node, nodes)
        else:  # the bucket of the workspace
            count = config.launch.ranks_per_node
            prepare_machine(config, range(node * count, (node + 1) * count))
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _read_orders(following: UploadLoop) -> None:
    """Tell the upload loop to finish when a line arrives on standard input. If the input closes, exit at once, because
    the supervisor has ended."""
    for _ in sys.stdin:
        following.finishing.set()
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
