"""Copies of a rank's state: sent to the keepers every few steps, and restored after a failure.

    after a step     the state is copied to host memory parallel to the next forward and backward pass, like a save
    then, a thread   digests the copy and sends it to the keeper of this node and to the keeper of the next node
    before a step with the next copy   the rank waits until the previous one has arrived (see `keeper`)

A copy has the same content as a rank's part of a checkpoint: master weights and optimizer state, counters, generators,
monitor, guard and hooks. It also has what a checkpoint takes from other ranks, so a rank is restored from its own copy.
After a restore, the digest of the engine's memory must equal the digest of the memory that was copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch.distributed as dist

from plinth.errors import CheckpointError, PlinthError
from plinth.storage import tensor_file
from plinth.training import wire
from plinth.training.checkpoint import rank_part, snapshot, universal
from plinth.training.checkpoint.rank_part import TensorsFile, digest_of_lines
from plinth.training.checkpoint.sharded_state import Captured, metadata_of
from plinth.training.checkpoint.staging import Arena, BackgroundCopy, StagingLayout, line_of
from plinth.training.engine.engine import TrainingEngine
from plinth.training.recovery.keeper import CopyName
from plinth.training.recovery.orders import JoinOrder, own_keepers
from plinth.training.telemetry.timeline import Pulse, RankFailure

_Result = TypeVar("_Result")

#: A plan of a copy: `file` describes the tensors in the block (`TensorsFile`), `sha256` their digest, and `generators`
#: and `monitor` are the rest of the state.
Plan = Mapping[str, Any]


class FetchedCopy(NamedTuple):
    """A copy that has arrived from a keeper."""

    plan: Plan
    block: bytearray


class Copier:
    """Copies of one rank's state.

    Args:
        engine: the current engine.
        order: the order by which this rank has joined.
        secret: secret of the job.
    """

    def __init__(self, engine: TrainingEngine, order: JoinOrder, secret: str) -> None:
        self.engine, self.order, self._secret = engine, order, secret
        self.restored = ""  # digest of the state of the ranks that was restored
        self._keepers = own_keepers(order.keepers, engine.rank.index)
        self._every = engine.config.recovery.copies_every
        self._arena, self._pool = Arena(), ThreadPoolExecutor(1, "plinth-copies")
        self._copying: BackgroundCopy | None = None
        self._hook: Any = None
        self._sent: Future[list[str]] | None = None

    def due(self, step: int) -> bool:
        """Return True if the state is copied after this step."""
        return step % self._every == 0

    def copy(self, step: int, rollbacks: int, monitor: Mapping[str, Any]) -> None:
        """Start to copy the state after `step`. The previous copy must have settled before the step."""
        captured = universal.capture(self.engine, complete=True)
        layout = StagingLayout(captured.tensors.values())
        plan = {
            "file": described(captured, layout),
            "generators": snapshot.generators(),
            "monitor": json.loads(json.dumps(monitor)),
        }
        self._arena.reserve(layout.bytes)
        known = {"rollbacks": rollbacks, "history": self.order.history}
        name, size = CopyName(rank=self.engine.rank.index, step=step, **known), layout.bytes

        def arrived(waited_s: float) -> None:
            self._sent = self._pool.submit(self._send, name, plan, size)

        if self.engine.rank.device.type != "cpu":
            layout.copy(self._arena.block)
            arrived(0.0)
            return
        self._copying = BackgroundCopy(layout, self._arena.block, arrived)
        self._hook = self.engine.deepspeed.basic_optimizer.register_step_pre_hook(self._before_update)
        self._copying.start()

    def settle(self) -> list[str]:
        """Wait until the copy in progress has arrived. Return the keepers that it did not reach, with the reasons."""
        self.wait_until_copied()
        sent, self._sent = self._sent, None
        return sent.result() if sent is not None else []

    def wait_until_copied(self) -> None:
        """Wait until the state is in the copy's own memory. Call this before any change of the state except an
        optimizer update."""
        if self._copying is not None:
            self._copying.wait()
            self._hook.remove()
            self._copying = self._hook = None

    def restore(self) -> dict[str, Any]:
        """Load every rank's copy that the order names into its engine, and return the monitor at that step. All ranks
        must call this.

        Raises:
            CheckpointError: a rank has no intact copy. Every rank raises the first rank's error.
        """
        assert self.order.step is not None
        wanted = {"step": self.order.step, "rollbacks": self.order.rollbacks, "history": self.order.restored}
        name = CopyName(rank=self.engine.rank.index, **wanted)
        found = _together(lambda: fetched(name, self._keepers, self._secret))
        _fill(self.engine, found)
        snapshot.restore_generators(found.plan["generators"])
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, _together(lambda: _unchanged(self.engine, name, found.plan)))
        self.restored = digest_of_lines(f"{digest}\n" for digest in digests)
        box = [dict(found.plan["monitor"])]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def abandon(self) -> None:
        """End without waiting for a copy that is still being sent. It may arrive later."""
        self.wait_until_copied()
        self._pool.submit(self._arena.close)
        self._pool.shutdown(wait=False)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Wait for the copy before an update, which changes the state."""
        with self.engine.clock.within("checkpoint"):
            assert self._copying is not None
            self._copying.wait()

    def _send(self, name: CopyName, plan: dict[str, Any], size: int) -> list[str]:
        block, failures = self._arena.block.numpy().data[:size], []
        plan["sha256"] = _digest(TensorsFile.model_validate(plan["file"]), block)
        for keeper in self._keepers:
            try:
                with wire.connect(keeper, self._secret) as connection:
                    wire.send(connection, {"do": "put", "name": name.model_dump(), "size": size})
                    wire.send_block(connection, block)
                    wire.send(connection, plan)
                    wire.receive(connection)
            except wire.FAILURES as error:
                failures.append(f"{keeper}: {type(error).__name__}: {error}")
        return failures


def described(captured: Captured, layout: StagingLayout) -> dict[str, Any]:
    """Return the description of a rank's state in a block of memory, as the file of a checkpoint."""
    tensors = tuple(layout.describe(index, key) for index, key in enumerate(captured.tensors))
    return TensorsFile(path="", metadata=metadata_of(captured), tensors=tensors).model_dump(mode="json")


def fetched(name: CopyName, keepers: Iterable[str], secret: str) -> FetchedCopy:
    """Return a copy from the first keeper that has it, after comparing its digest.

    Raises:
        CheckpointError: no keeper has an intact copy.
    """
    reasons = []
    for keeper in keepers:
        try:
            with wire.connect(keeper, secret) as connection:
                wire.send(connection, {"do": "get", **name.model_dump()})
                found = wire.receive(connection)
                if found["plan"] is None:
                    reasons.append(f"{keeper}: no such copy")
                    continue
                block = bytearray(found["size"])
                with memoryview(block) as view:
                    wire.receive_block(connection, view)
                    if _digest(TensorsFile.model_validate(found["plan"]["file"]), view) == found["plan"]["sha256"]:
                        return FetchedCopy(found["plan"], block)
            reasons.append(f"{keeper}: the copy has changed")
        except wire.FAILURES as error:
            reasons.append(f"{keeper}: {type(error).__name__}: {error}")
    raise CheckpointError(
        f"no copy of rank {name.rank} after step {name.step} is in memory",
        found="; ".join(reasons),
        remedy="the last committed checkpoint is used",
    )


def _unchanged(engine: TrainingEngine, name: CopyName, plan: Plan) -> str:
    """Return the digest of the restored state.

    Raises:
        CheckpointError: it differs from the state that was copied.
    """
    state = universal.capture(engine, complete=True).tensors
    found = digest_of_lines(line_of(key, tensor) for key, tensor in state.items())
    if (found, snapshot.generators()) != (plan["sha256"], plan["generators"]):
        raise CheckpointError(
            f"the state of rank {name.rank} differs from its copy after step {name.step}",
            found=found,
            expected=plan["sha256"],
        )
    return found


def _fill(engine: TrainingEngine, found: FetchedCopy) -> None:
    """Load a copy into the engine through a file in memory, like a checkpoint's file."""
    described, view = TensorsFile.model_validate(found.plan["file"]), memoryview(found.block)
    entries = {
        one.name: tensor_file.TensorEntry(one.dtype, one.shape, view[one.at : one.at + one.bytes])
        for one in described.tensors
    }
    descriptor = os.memfd_create("plinth-copy", os.MFD_CLOEXEC)
    try:
        sizes = {key: (one.dtype, one.shape, one.data.nbytes) for key, one in entries.items()}
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(tensor_file.header(sizes, described.metadata))
            for one in entries.values():
                stream.write(one.data)
        file = Path(f"/proc/self/fd/{descriptor}")
        universal.restore(engine, file.parent, beat=Pulse(engine.config.directory.events), files=[file])
    finally:
        os.close(descriptor)


def _together(work: Callable[[], _Result]) -> _Result:
    """Return the result of this rank's work. If it fails on any rank, raise the first rank's error on every rank. All
    ranks must call this."""
    result: _Result | None = None
    failure: RankFailure | None = None
    try:
        result = work()
    except PlinthError as error:
        failure = RankFailure.of(error)
    failures: list[RankFailure | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    first = next((one for one in failures if one is not None), None)
    if first is not None:
        raise first.error()
    return cast(_Result, result)


def _digest(file: TensorsFile, block: memoryview) -> str:
    """Return the digest of the state in a block: that of the engine's tensors, in order."""
    return digest_of_lines(rank_part.line(tensor, block) for tensor in file.tensors)
