"""Records that the supervisors of several nodes exchange, and the start of a node's processes.

Node 0 gives orders; the others execute them, and report. They are connected over TCP (`peers`), and find each other by
the record of `rendezvous`. A node without a connection to node 0 ends its ranks before node 0 counts it as lost.
The scheduler sets PLINTH_NODE and PLINTH_NODES, and PLINTH_ADDRESS, the address of node 0.

Does not belong here: the roles of node 0 (leader) and of the other nodes (follower).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import Field

from plinth import processes
from plinth.errors import LaunchError
from plinth.records import Frozen
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.training.attempts import HostFacts
from plinth.training.config import RunConfig
from plinth.training.peers import Contact
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.recovery.standby import RankStarter, StandbyStarter
from plinth.training.shared_run.head import SESSION
from plinth.training.supervise import rank_watch
from plinth.training.supervise.host_checks import HostReport
from plinth.training.supervise.rank_watch import Process
from plinth.training.telemetry.timeline import RankFailure
from plinth.trust.dsse import TRAINER

#: Share of a time limit after which a node without a connection to node 0 ends its ranks. At the limit, node 0 may give
#: them to others.
LEAVES_AT = 0.75

#: Number of a node's process that is not a rank.
OTHER = -1

#: Variables of a rank with an external trainer: `config.json`, the attempt, and the step of the checkpoint to load (0:
#: from the beginning).
RUN, ATTEMPT, RESUME = "PLINTH_RUN", "PLINTH_ATTEMPT", "PLINTH_RESUME"


class NodePlace(Frozen):
    """Number of this node, the number of nodes in the job, and the seconds until a node is lost: after its connection
    has ended, and while it is connected and silent."""

    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    closed_s: float = 4.0
    silent_s: float = 14.0

    @classmethod
    def of(cls, environment: Mapping[str, str], config: RunConfig) -> NodePlace:
        """Return this node's number and the number of nodes, from the scheduler's environment variables.

        Raises:
            LaunchError: the allocation has another number of nodes than the run needs.
        """
        given = {name.removeprefix("PLINTH_").lower(): value for name, value in environment.items()}
        place = cls.model_validate({name: given[name] for name in cls.model_fields if name in given})
        if place.nodes != config.launch.machines or not 0 <= place.node < place.nodes:
            raise LaunchError(
                f"run {config.run_id} does not match this allocation",
                found=f"node {place.node} of {place.nodes}",
                expected=f"launch.nodes + launch.spares = {config.launch.machines}",
                remedy="submit the run again, so that it requests the nodes of the recipe",
            )
        return place

    def start_s(self, config: RunConfig) -> float:
        """Return the seconds until a node that has sent no message yet is lost. It may still be starting."""
        return max(self.silent_s, config.supervision.hang_s)

    def is_lost(self, other: Contact, share: float = 1.0) -> bool:
        """Return True if a node that has sent a message is lost, after a share of the limits."""
        return bool(other.silence(share * self.closed_s, share * self.silent_s))


def ranks_of(config: RunConfig, seat: int) -> range:
    """Return the ranks of a seat: the place of a node. A spare node takes the seat of a lost node."""
    count = config.launch.ranks_per_node
    return range(seat * count, (seat + 1) * count)


class NodeOrder(Frozen):
    """An order of node 0. Every attempt has its own `id`. An order with a `status` ends the job with that status."""

    id: str = ""
    seats: tuple[int, ...] = ()  # the node of each seat; the others are spares
    attempt: int = 0
    audit: bool = False
    other_code: bool = False  # of an audit: its code has not trained the run
    resume: int = 0  # step of the verified checkpoint that an external trainer loads; of an audit: its start
    address: str = ""
    port: int = 0
    signals: tuple[int, ...] = ()
    check: int = 0  # port of node 0 during host checks
    fetch: int | None = None  # step of a checkpoint in the bucket to fetch, a share per node
    recovery: RecoveryLink | None = None  # of the ranks that start
    replaced: Mapping[int, int] = Field(default_factory=dict)  # ranks to start again, with the loss that they had
    status: int | None = None

    def seat(self, node: int) -> int | None:
        """Return the seat of a node, or None for a spare."""
        return self.seats.index(node) if node in self.seats else None

    @property
    def epoch(self) -> int:
        """Number of losses of this attempt until now."""
        return self.recovery.first.epoch if self.recovery else 0


class NodeReport(Frozen):
    """State of a node: the order that it follows, the exit status of each of its ranks (or of its check or download,
    `OTHER`), a signal that the node itself received, and the facts about its machine. `epoch` is the last loss after
    which it has started its ranks, `keeper` the address of its copies, and `checks` the newest result of its checks.
    `failure` is the error of one of its ranks, if it is on a timeline of this node's own."""

    order: str = ""
    codes: Mapping[int, int | None] = Field(default_factory=dict)
    asked_to_stop: int = 0
    host: HostFacts | None = None
    epoch: int = 0
    keeper: str = ""
    checks: HostReport | None = None
    failure: RankFailure | None = None


def start_rank(
    config: RunConfig, config_path: Path, order: NodeOrder, rank: int, locks: tuple[int, ...] = ()
) -> Process:
    """Start one rank of this node with the environment that DeepSpeed and torch expect."""
    if config.trainer is not None and not order.audit:
        known, key = rank_environment(config, order, rank), f"{KEY_VARIABLE}{TRAINER.upper()}"
        own = {
            **{name: value for name, value in known.items() if name == key or not name.startswith(KEY_VARIABLE)},
            RUN: str(config_path.absolute()),
            ATTEMPT: str(order.attempt),
            RESUME: str(order.resume),
        }
        return _interpreter(list(config.trainer.command), own, locks)
    command = processes.python("plinth.training", str(config_path), "--attempt", str(order.attempt))
    command += ["--audit"] * order.audit + ["--other-code"] * order.other_code
    command += ["--start", str(order.resume)] if order.audit and order.resume else []
    return _STARTER[-1](command, rank_environment(config, order, rank), locks)


def rank_environment(config: RunConfig, order: NodeOrder, rank: int) -> dict[str, str]:
    """Return the environment of one rank of this node. The rank may use the trainer's key to sign attestations."""
    count = config.launch.ranks_per_node
    given = {
        **rank_watch.environment(config.directory),
        **processes.heap(),
        **processes.environment(*processes.JOB),
        **config.launch.environment,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % count),
        "WORLD_SIZE": str(config.ranks),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": order.address,
        "MASTER_PORT": str(order.port),
        **(order.recovery.environment() if order.recovery else {}),
        **{name: os.environ[name] for name in (SESSION,) if config.trainer is None and name in os.environ},
        rank_watch.SUPERVISOR: str(os.getpid()),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count)),
        "PYTHONUNBUFFERED": "1",
    }
    return processes.environment(own=given)


def _interpreter(command: list[str], environment: dict[str, str], locks: tuple[int, ...]) -> Process:
    process: subprocess.Popen[bytes] = processes.start(
        command, own=environment, stdin=subprocess.DEVNULL, pass_fds=locks
    )
    return process


#: Function that starts a rank in this process; default: in an interpreter of its own.
_STARTER: list[RankStarter] = [_interpreter]


def start_ranks_by(starter: RankStarter) -> None:
    """Set the function that starts ranks in this process. For example, a rehearsal starts ranks with torch already
    loaded."""
    _STARTER[:] = [starter]


def keep_standby() -> StandbyStarter | None:
    """Have the ranks of this node forked by a process that has loaded torch. Return its owner, or None if ranks are not
    started in interpreters of their own."""
    if _STARTER[-1] is _interpreter:
        start_ranks_by(StandbyStarter(_interpreter))
    starter = _STARTER[-1]
    return starter if isinstance(starter, StandbyStarter) else None


def prepare_spare(owner: StandbyStarter, config: RunConfig, config_path: Path, order: NodeOrder) -> None:
    """Load what the ranks need that this spare node may get."""
    owner.fill(processes.python("plinth.training", str(config_path)), rank_environment(config, order, 0))


def end_standby(owner: StandbyStarter | None) -> None:
    """End the process that forks ranks."""
    if owner is not None:
        owner.close()
        start_ranks_by(_interpreter)


class CheckProcess:
    """Process that checks this node (`peer_checks`).

    Args:
        address, port: of node 0 during the checks.
    """

    def __init__(self, config: RunConfig, config_path: Path, node: int, address: str, port: int) -> None:
        self.report: HostReport | None = None  # the newest
        receive, send = os.pipe()
        words = [str(node), str(config.launch.nodes), address, str(port), str(send)]
        command = processes.python("plinth.training.supervise.peer_checks", str(config_path), *words)
        self._process = processes.start(command, *processes.JOB, stdin=subprocess.DEVNULL, pass_fds=(send,))
        os.close(send)
        self._reader = threading.Thread(target=self._read, args=(receive,), daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit status once the process has ended and its last report was read, or None."""
        return None if self._process.poll() is None else self.wait()

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        status = int(self._process.wait())
        self._reader.join()
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(sig)

    def _read(self, descriptor: int) -> None:
        with open(descriptor) as lines:
            for line in lines:
                self.report = HostReport.model_validate_json(line)


def on_stop(note: Callable[[int], None]) -> None:
    """Install handlers that pass SIGTERM and SIGINT to `note`, so that these signals do not end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: note(number))
