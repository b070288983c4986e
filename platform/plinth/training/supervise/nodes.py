"""Communication between several nodes with one supervisor each. The first node gives orders; the others execute them.

The nodes communicate through files in the run's directory, `nodes/`, which all nodes can read:

    order.json       from node 0: placement of the attempt, its signals, its final status
    report-0001.json from node 1: the order that it follows, and the exit status of its ranks
    beat-0001        a counter that increases while the node's supervisor is alive
    host-0001.json   result of the checks of node 1
    lock-0001        locked by the supervisor of node 1 and its ranks

Orders are valid while the heartbeat of their supervisor increases, so orders of a killed supervisor start nothing.
The scheduler sets PLINTH_NODE and PLINTH_NODES, and PLINTH_ADDRESS, the address of node 0.

Does not belong here: the roles of node 0 and of the other nodes (node_roles).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from plinth import processes
from plinth.errors import LaunchError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.training.attempts import HostFacts
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.recovery.standby import StandbyStarter
from plinth.training.shared_run.head import SESSION
from plinth.training.supervise import rank_watch
from plinth.training.supervise.rank_watch import Process
from plinth.trust.dsse import TRAINER

BEAT_S = 1.0

#: Seconds without a heartbeat until a node counts as lost. More than the 60 s for which NFS may show old attributes.
LEASE_S = 120.0

#: Variables of a rank with an external trainer: `config.json`, the attempt, and the step of the checkpoint to load (0:
#: from the beginning).
RUN, ATTEMPT, RESUME = "PLINTH_RUN", "PLINTH_ATTEMPT", "PLINTH_RESUME"

_Record = TypeVar("_Record", bound=Frozen)

#: Starts a rank: its command, its environment, and the descriptor of the lock that it inherits.
RankStarter = Callable[[list[str], dict[str, str], int], Process]


class NodePlace(Frozen):
    """Number of this node, and the number of nodes in the job."""

    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    lease_s: float = LEASE_S

    @classmethod
    def of(cls, environment: Mapping[str, str], config: RunConfig) -> NodePlace:
        """Return this node's number and the number of nodes, from the scheduler's environment variables.

        Raises:
            LaunchError: the allocation has another number of nodes than the run needs.
        """
        given = {name.removeprefix("PLINTH_").lower(): value for name, value in environment.items()}
        place = cls.model_validate({name: given[name] for name in cls.model_fields if name in given})
        if place.nodes != config.launch.nodes or not 0 <= place.node < place.nodes:
            raise LaunchError(
                f"run {config.run_id} does not match this allocation",
                found=f"node {place.node} of {place.nodes}",
                expected=f"launch.nodes = {config.launch.nodes}",
                remedy="submit the run again, so that it requests the nodes of the recipe",
            )
        return place

    def ranks(self, config: RunConfig, node: int | None = None) -> range:
        """Return the ranks of a node, by default of this node."""
        count = config.launch.ranks_per_node
        first = (self.node if node is None else node) * count
        return range(first, first + count)

    def silence_limit_s(self, config: RunConfig, heard: HeartbeatReader) -> float:
        """Return the number of seconds without a heartbeat after which a node is lost.

        The limit is longer before the first heartbeat, because the node may still be starting.
        """
        return self.lease_s if heard.session else max(self.lease_s, config.supervision.hang_s)


class NodeOrder(Frozen):
    """An order of node 0. Every attempt has its own `id`. An order with a `status` ends the job with that status."""

    id: str
    session: str
    secret: str = ""  # of the recovery; the session is in heartbeats, which others can read
    attempt: int = 0
    audit: bool = False
    resume: int = 0  # step of the verified checkpoint that an external trainer loads
    address: str = ""
    port: int = 0
    signals: tuple[int, ...] = ()
    check: int = 0  # port of node 0 during host checks
    fetch: int | None = None  # step of a checkpoint in the bucket to fetch, a share per node
    recovery: RecoveryLink | None = None  # of the ranks that start
    replaced: tuple[int, ...] = ()  # ranks to start again; the others continue
    status: int | None = None


class NodeReport(Frozen):
    """A node's report on an order: the exit status of each of its ranks, a signal that the node itself received, and
    the facts about its machine. `session` is the session of the order, `epoch` the last loss after which it has started
    its ranks, and `keeper` the address of its copies."""

    order: str
    session: str = ""
    codes: tuple[int | None, ...] = ()
    asked_to_stop: int = 0
    host: HostFacts | None = None
    epoch: int = 0
    keeper: str = ""


class NodeFiles:
    """Paths of the files in `nodes/`."""

    def __init__(self, run: RunDirectory) -> None:
        self.root = run.root / "nodes"
        self.order = self.root / "order.json"

    def report(self, node: int) -> Path:
        return self.root / f"report-{node:04d}.json"

    def beat(self, node: int) -> Path:
        return self.root / f"beat-{node:04d}"

    def host_checks(self, node: int) -> Path:
        return self.root / f"host-{node:04d}.json"

    def lock(self, node: int) -> Path:
        return self.root / f"lock-{node:04d}"


def read(path: Path, record: type[_Record]) -> _Record | None:
    """Return the record in a JSON file, or None if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return record.model_validate_json(path.read_bytes())
    return None


def write(path: Path, record: Frozen, *, mode: int | None = None) -> None:
    """Write a record to a file atomically, so that a reader sees either the old record or the new record."""
    write_bytes(path, record.model_dump_json().encode(), mode=mode)


class Heartbeat:
    """Thread that increases a number in a file while this process is alive."""

    def __init__(self, path: Path, session: str) -> None:
        self._path, self._session = path, session
        path.parent.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._beat, name="plinth-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            with contextlib.suppress(OSError):  # others report a full disk
                self._path.write_text(f"{self._session} {count}")
            time.sleep(BEAT_S)


class HeartbeatReader:
    """Reader of another node's heartbeat: its session, and the seconds since the heartbeat last increased.

    The file is opened for each read, as NFS requires.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._changed, self._read_at = path, time.monotonic(), 0.0
        self._seen = self._read()
        self.session = ""  # session of the newest heartbeat since creation

    def age_s(self) -> float:
        now = time.monotonic()
        if now - self._read_at > BEAT_S / 2:
            self._read_at, found = now, self._read()
            if found and found != self._seen:
                self._seen, self._changed, self.session = found, now, found.partition(" ")[0]
        return now - self._changed

    def _read(self) -> str:
        with contextlib.suppress(OSError):
            return self._path.read_text()
        return ""


def start_rank(
    config: RunConfig, config_path: Path, place: NodePlace, order: NodeOrder, rank: int, lock_fd: int
) -> Process:
    """Start one rank of this node with the environment that DeepSpeed and torch expect."""
    if config.trainer is not None and not order.audit:
        known, key = rank_environment(config, place, order, rank), f"{KEY_VARIABLE}{TRAINER.upper()}"
        own = {
            **{name: value for name, value in known.items() if name == key or not name.startswith(KEY_VARIABLE)},
            RUN: str(config_path.absolute()),
            ATTEMPT: str(order.attempt),
            RESUME: str(order.resume),
        }
        return _interpreter(list(config.trainer.command), own, lock_fd)
    command = processes.python("plinth.training", str(config_path), "--attempt", str(order.attempt))
    return _STARTER[-1](command + ["--audit"] * order.audit, rank_environment(config, place, order, rank), lock_fd)


def rank_environment(config: RunConfig, place: NodePlace, order: NodeOrder, rank: int) -> dict[str, str]:
    """Return the environment of one rank of this node. The rank may use the trainer's key to sign attestations."""
    here = place.ranks(config)
    given = {
        **rank_watch.environment(config.directory),
        **processes.heap(),
        **processes.environment(*processes.JOB),
        **config.launch.environment,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - here.start),
        "WORLD_SIZE": str(config.ranks),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": order.address,
        "MASTER_PORT": str(order.port),
        **(order.recovery.environment() if order.recovery else {}),
        **{name: os.environ[name] for name in (SESSION,) if config.trainer is None and name in os.environ},
        rank_watch.SUPERVISOR: str(os.getpid()),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(here))),
        "PYTHONUNBUFFERED": "1",
    }
    return processes.environment(own=given)


def _interpreter(command: list[str], environment: dict[str, str], lock_fd: int) -> Process:
    process: subprocess.Popen[bytes] = processes.start(
        command, own=environment, stdin=subprocess.DEVNULL, pass_fds=(lock_fd,)
    )
    return process


#: Function that starts a rank in this process; default: in an interpreter of its own.
_STARTER: list[RankStarter] = [_interpreter]


def start_ranks_by(starter: RankStarter) -> None:
    """Set the function that starts ranks in this process. For example, a rehearsal starts ranks with torch already
    loaded."""
    _STARTER[:] = [starter]


def keep_standby() -> StandbyStarter | None:
    """Keep a process waiting to replace a lost rank of this node. Return its owner, or None if ranks are not started in
    interpreters of their own."""
    if _STARTER[-1] is not _interpreter:
        return None
    made = StandbyStarter()
    start_ranks_by(made)
    return made


def end_standby(owner: StandbyStarter | None) -> None:
    """End the process that waits to replace a rank."""
    if owner is not None:
        owner.close()
        start_ranks_by(_interpreter)


def start_checks(config_path: Path, place: NodePlace, address: str, port: int) -> subprocess.Popen[bytes]:
    """Start the process that checks this node (`peer_checks`)."""
    words = [str(place.node), str(place.nodes), address, str(port)]
    module = "plinth.training.supervise.peer_checks"
    command = processes.python(module, str(config_path), *words)
    process: subprocess.Popen[bytes] = processes.start(command, *processes.JOB, stdin=subprocess.DEVNULL)
    return process


def on_stop(note: Callable[[int], None]) -> None:
    """Install handlers that pass SIGTERM and SIGINT to `note`, so that these signals do not end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: note(number))
