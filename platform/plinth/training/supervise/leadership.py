"""Right to act for a run, which one supervisor has at a time, and its succession after the loss of node 0.

    node 0 starts ─▶ takes the run's lock (and in a bucket, the claim) ─▶ publishes its address ─▶ leads
    node 0 is lost ─▶ its lock is released ─▶ the first spare that takes it leads in its place ─▶ the others follow it

The lock, or the conditional change of the head in a bucket, is the fence: a node 0 that is alive cannot be succeeded,
and one that has lost its claim cannot commit. A node 0 that starts again follows the node that leads meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from plinth.errors import LaunchError
from plinth.training.config import RunConfig
from plinth.training.shared_run.head import LEASE_S
from plinth.training.shared_run.shipping import Shipper, claim, is_shared
from plinth.training.supervise.nodes import NodePlace
from plinth.training.supervise.result import TIMEOUT_S, hold

#: Seconds for which nodes without node 0 wait for another node that leads.
SUCCESSION_S = 60.0

#: Seconds without a renewal after which a spare takes the claim of a node 0 that it has lost.
LOST_LEASE_S = 15.0


class Succession(NamedTuple):
    """The job of a lost node 0, as a spare knows it: the job's secret, by which the copies in memory can be read, the
    node of each seat, the lost node first, and the address of the spare for the other nodes."""

    secret: str
    seats: tuple[int, ...]
    address: str


class Leadership(NamedTuple):
    """The right to act for a run: the lock that the ranks inherit, and what ships a shared run's files. After a
    succession also the job, and a function that returns the stop signal that the spare has received, or 0."""

    lock: int
    shipper: Shipper | None = None
    succession: Succession | None = None
    asked_to_stop: Callable[[], int] = lambda: 0


def own_lock(config: RunConfig, place: NodePlace) -> int | None:
    """Take the lock of this node's own folder for a shared run. Return None if all nodes share the folder.

    Raises:
        LaunchError: another supervisor is active there.
    """
    if not is_shared(config.directory):
        return None
    try:
        return hold(config.directory.lock)
    except LaunchError as error:
        if place.node == 0:
            raise
        raise LaunchError(
            f"node {place.node} has no folder of its own for the run",
            found=f"another node or job has locked {config.directory.root}",
            expected="a folder on each node's own disk, because the workspace is in a bucket",
            remedy="set PLINTH_CACHE on the nodes to a folder that is not on a shared file system",
        ) from error


def acquire(
    config: RunConfig, own: int | None, *, wait_s: float = TIMEOUT_S, lease_s: float = LEASE_S, ended: bool = True
) -> Leadership:
    """Take the right to act for a run.

    Args:
        own: lock of this node's own folder, if the run is shared.
        wait_s: seconds to wait for the lock of a common folder.
        lease_s: seconds after which the claim of a shared run expires.
        ended: False to leave a shared run whose last supervisor has ended in order.

    Raises:
        LaunchError: another supervisor has it, or is not succeeded.
        IntegrityError, StorageError: the shared run's files cannot be fetched.
    """
    if own is None:
        return Leadership(hold(config.directory.lock, wait_s))
    claimed = claim(config, uuid.uuid4().hex, lease_s, ended=ended)
    return Leadership(own, Shipper(*claimed) if claimed is not None else None)
