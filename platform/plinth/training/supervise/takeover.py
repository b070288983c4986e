"""Start of a job on a run that an earlier job, or a lost node 0, has left behind.

    earlier supervisor was killed ─▶ clean ─▶ fetch checkpoints of a shared run ─▶ report lost work
    node 0 is lost, a spare leads ─▶ gather the other nodes, then the same

Does not belong here: the right to act for the run (leadership).
"""

from __future__ import annotations

from plinth.errors import StorageError
from plinth.training.attempts import this_host
from plinth.training.checkpoint import checkpoint, writer
from plinth.training.checkpoint.shares import SharedCheckpoints
from plinth.training.checkpoint.upload import restore
from plinth.training.config import RunConfig
from plinth.training.recovery.coordinator import RecoveryCoordinator
from plinth.training.shared_run.shipping import Shipper
from plinth.training.supervise.job_ranks import JobRanks
from plinth.training.supervise.leader import NodeMove
from plinth.training.supervise.leadership import Leadership, Succession
from plinth.training.supervise.nodes import ranks_of
from plinth.training.supervise.rank_watch import NODE_LOST, describe_exit, spans


def begin(ranks: JobRanks, right: Leadership, coordinator: RecoveryCoordinator | None) -> None:
    """Start a job: clean up after a killed supervisor, fetch the checkpoints of a shared run, and report lost work."""
    leader, log, succession = ranks.leader, ranks.log, right.succession
    moves = _gather(ranks, succession) if succession is not None else []
    clean(ranks.config)
    fetched = [] if right.shipper is None or leader.lacks_spares() else _fetch(ranks, right.shipper)
    lost = log.lose_vanished(coordinator.newest() if coordinator is not None and succession is not None else None)
    if lost is not None:
        log.events.append("vanished", from_step=lost.from_step, lost_steps=lost.steps, lost_s=lost.seconds)
    log.events.append("job_started", ranks=ranks.config.ranks, nodes=leader.count)
    for move in moves:
        ranks.log_move(move)
    if fetched and right.shipper is not None:
        log.events.append("downloaded", step=max(fetched), source=right.shipper.place, durable=True)


def download(ranks: JobRanks) -> None:
    """Download a checkpoint that exists only in another bucket, to which the run's checkpoints are uploaded."""
    config, source = ranks.config, ranks.config.checkpoints.upload
    if source and not checkpoint.committed(config.directory):
        restored = restore(config, ranks.leader)
        if restored is not None:
            ranks.log.events.append("downloaded", step=restored, source=source, durable=True)


def _gather(ranks: JobRanks, succession: Succession) -> list[NodeMove]:
    """Wait for the nodes that followed a lost node 0, and give the seats of those that are lost too to spares. Return
    the changes, that of node 0 first."""
    ranks.log.loss = describe_exit(0, NODE_LOST)
    ranks.leader.hosts()
    own = spans(ranks_of(ranks.config, 0))
    first = NodeMove(node=succession.seats[0], by=ranks.place.node, host=this_host().host, ranks=own)
    return [first, *ranks.leader.reseat()]


def _fetch(ranks: JobRanks, shipper: Shipper) -> list[int]:
    """Fetch the checkpoints of a shared run that this machine lacks, together with the other machines. Return their
    steps.

    Raises:
        StorageError: the bucket is unreachable from some machine.
    """
    config, leader = ranks.config, ranks.leader
    if config.trainer is not None:
        return []
    bucket = SharedCheckpoints(config.directory, shipper.session)
    bucket.upload_earlier()
    highest = ranks.log.highest()
    if untold := [step for step in bucket.committed() if step > highest]:
        bucket.drop(untold)  # a lost machine has not shipped the events of their steps, which are taken again
    if bucket.committed():
        leader.begin(bucket.committed()[-1])
    fetched = bucket.sync(config, ranks_of(config, 0))
    if failed := leader.failed() if bucket.committed() else []:
        raise StorageError(
            f"some machines could not fetch their files of the last checkpoint of run {config.run_id}",
            found=f"node {', '.join(map(str, failed))}",
            remedy="read the log of these nodes, then run the same command again",
        )
    return fetched


def clean(config: RunConfig) -> None:
    """Let the writers commit the state that every rank had staged. Then delete half-written files, which may fill the
    disk."""
    run = config.directory
    run.require_no_links()
    for rank in writer.wait_until_gone(run, config.supervision.hang_s):
        writer.end(run, rank)
    checkpoint.clean(run)
