"""Copies of a rank's state: sent to the keepers every few steps, and restored after a failure.

    after a step     a thread copies the state to host memory, parallel to the next forward and backward pass
    then             it digests the copy once, and sends it to the keeper of this node and to that of the next node
    before a step with the next copy   the rank waits until the previous one has arrived (see `keeper`)

    copy:  tensors │ form, as JSON: their names and places │ rest, as JSON: counters, generators, monitor

A copy has the same content as a rank's part of a checkpoint: master weights and optimizer state, counters, generators,
monitor, guard and hooks. It also has what a checkpoint takes from other ranks, so a rank is restored from its own copy.
After a restore, the digest of the engine's memory must equal the digest of the memory that was copied.

The cost of a copy is that of its bytes: each is copied once, hashed once, and sent twice. The form is computed again
only if the engine has replaced a tensor, and connections are kept between copies.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch.distributed as dist
from blake3 import blake3

from plinth.errors import CheckpointError, PlinthError
from plinth.records import Frozen
from plinth.storage import tensor_file
from plinth.training import wire
from plinth.training.checkpoint import rank_part, snapshot, universal
from plinth.training.checkpoint.rank_part import digest_of_lines
from plinth.training.checkpoint.sharded_state import Captured, metadata_of
from plinth.training.checkpoint.staging import Arena, StagingLayout, bytes_of
from plinth.training.engine.engine import TrainingEngine
from plinth.training.recovery.keeper import CopyName
from plinth.training.recovery.orders import JoinOrder, own_keepers
from plinth.training.telemetry.timeline import Pulse, RankFailure

_Result = TypeVar("_Result")


class Plan(Frozen):
    """Description of a copy, next to its bytes: size of its tensors and of its form, and the digest of the state."""

    tensors: int
    form: int
    sha256: str = ""


class StateForm:
    """Names and places of a rank's state in the engine's memory, and its places in a copy."""

    def __init__(self, engine: TrainingEngine) -> None:
        captured = universal.capture(engine, complete=True)
        self.layout = StagingLayout(captured.tensors.values())
        self.tensors = tuple(self.layout.describe(index, key) for index, key in enumerate(captured.tensors))
        header = {key: captured.header[key] for key in ("shapes", "groups")}
        self.described = _described(self.tensors, header)
        self.text = json.dumps({"tensors": [one.model_dump() for one in self.tensors], "header": header}).encode()
        self._places = _places(engine)

    def fits(self, engine: TrainingEngine) -> bool:
        """Return True if the engine has not replaced a tensor."""
        return self._places == _places(engine)


class _StatePart(NamedTuple):
    """Parts of a copy to digest: places of the tensors in it, their description, and the rest of the state."""

    tensors: tuple[rank_part.Tensor, ...]
    described: bytes
    rest: bytes


class FetchedCopy:
    """A copy that has arrived from a keeper, and its parts."""

    def __init__(self, plan: Plan, block: bytearray) -> None:
        self.plan, view = plan, memoryview(block)
        self.rest = bytes(view[plan.tensors + plan.form :])
        form = json.loads(bytes(view[plan.tensors : plan.tensors + plan.form]))
        self.tensors = tuple(rank_part.Tensor.model_validate(one) for one in form["tensors"])
        self.state: dict[str, Any] = json.loads(self.rest)
        self.described = _described(self.tensors, form["header"])
        self.header = {**form["header"], **self.state["counts"]}
        self.bytes_of = {one.name: view[one.at : one.at + one.bytes] for one in self.tensors}

    def digest(self) -> str:
        """Return the digest of what has arrived."""
        return _digest(self.described, self.bytes_of.values(), self.rest)


class KeeperLink:
    """Connection to a keeper. It is kept between copies, because a new one costs both ends more than a small copy.

    Args:
        address: address of the keeper.
        secret: secret of the job.
    """

    def __init__(self, address: str, secret: str) -> None:
        self.address, self._secret = address, secret
        self._connection: Connection | None = None
        self._used = 0.0

    def put(self, name: CopyName, block: memoryview, plan: Plan) -> None:
        """Send a copy, and wait until it is stored. If the keeper has closed a kept connection, open another one.

        Raises:
            OSError, EOFError, ValueError, AuthenticationError: the copy has not arrived.
        """
        if self._connection is not None and time.monotonic() - self._used < wire.STALLED_S / 2:
            try:
                return self._put(self._connection, name, block, plan)
            except BlockingIOError:  # the keeper stalls, also on another connection
                raise
            except wire.FAILURES:
                pass
        self.close()
        self._connection = wire.connect(self.address, self._secret)
        return self._put(self._connection, name, block, plan)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _put(self, connection: Connection, name: CopyName, block: memoryview, plan: Plan) -> None:
        try:
            wire.send(connection, {"do": "put", "name": name.model_dump(), "size": len(block)})
            wire.send_block(connection, block)
            wire.send(connection, plan.model_dump())
            wire.receive(connection)
        except BaseException:
            self.close()  # the keeper may still wait for the rest
            raise
        self._used = time.monotonic()


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
        self._keepers = [KeeperLink(one, secret) for one in own_keepers(order.keepers, engine.rank.index)]
        self._every = engine.config.recovery.copies_every
        self._arena, self._pool = Arena(), ThreadPoolExecutor(1, "plinth-copies")
        self._form: StateForm | None = None
        self._copying: Future[None] | None = None
        self._hook: Any = None
        self._sent: Future[list[str]] | None = None

    def due(self, step: int) -> bool:
        """Return True if the state is copied after this step."""
        return step % self._every == 0

    def copy(self, step: int, rollbacks: int, monitor: Mapping[str, Any]) -> None:
        """Start to copy the state after `step`. The previous copy must have settled before the step."""
        if self._form is None or not self._form.fits(self.engine):
            self._form = StateForm(self.engine)
        form, rest = self._form, _rest(self.engine, monitor)
        plan = Plan(tensors=form.layout.bytes, form=len(form.text))
        block = self._arena.reserve(plan.tensors + plan.form + len(rest))
        self._arena.write(plan.tensors, form.text + rest)
        known = {"rollbacks": rollbacks, "history": self.order.history}
        name = CopyName(rank=self.engine.rank.index, step=step, **known)
        if self.engine.rank.device.type == "cpu":
            self._copying = self._pool.submit(form.layout.copy, block)
            self._hook = self.engine.deepspeed.basic_optimizer.register_step_pre_hook(self._before_update)
        else:
            form.layout.copy(block)
        part = _StatePart(form.tensors, form.described, rest)  # without the engine's tensors
        self._sent = self._pool.submit(self._send, name, plan, part, self._copying)

    def settle(self) -> list[str]:
        """Wait until the copy in progress has arrived. Return the keepers that it did not reach, with the reasons."""
        self.wait_until_copied()
        sent, self._sent = self._sent, None
        return sent.result() if sent is not None else []

    def wait_until_copied(self) -> None:
        """Wait until the state is in the copy's own memory. Call this before any change of the state except an
        optimizer update."""
        if self._copying is not None:
            self._copying.result()
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
        addresses = [keeper.address for keeper in self._keepers]
        found = _together(lambda: fetched(name, addresses, self._secret))
        _fill(self.engine, found)
        snapshot.restore_generators(found.state["generators"])
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, _together(lambda: _unchanged(self.engine, name, found)))
        self.restored = digest_of_lines(f"{digest}\n" for digest in digests)
        box = [dict(found.state["monitor"])]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def abandon(self) -> None:
        """End without waiting for a copy that is still being sent. It may arrive later."""
        self.wait_until_copied()
        self._form = None  # it references tensors
        self._pool.submit(self._close)
        self._pool.shutdown(wait=False)

    def _close(self) -> None:
        for keeper in self._keepers:
            keeper.close()
        self._arena.close()

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Wait for the copy before an update, which changes the state."""
        with self.engine.clock.within("checkpoint"):
            assert self._copying is not None
            self._copying.result()

    def _send(self, name: CopyName, plan: Plan, part: _StatePart, copied: Future[None] | None) -> list[str]:
        if copied is not None:
            copied.result()  # raises the error of a copy that failed
        block, failures = self._arena.block.numpy().data[: plan.tensors + plan.form + len(part.rest)], []
        data = (block[one.at : one.at + one.bytes] for one in part.tensors)
        plan = plan.model_copy(update={"sha256": _digest(part.described, data, part.rest)})
        for keeper in self._keepers:
            try:
                keeper.put(name, block, plan)
            except wire.FAILURES as error:
                failures.append(f"{keeper.address}: {type(error).__name__}: {error}")
        return failures


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
                wire.receive_block(connection, memoryview(block))
            copy = FetchedCopy(Plan.model_validate(found["plan"]), block)
            if copy.digest() == copy.plan.sha256:
                return copy
            reasons.append(f"{keeper}: the copy has changed")
        except (*wire.FAILURES, LookupError, TypeError) as error:  # also of a form that has changed
            reasons.append(f"{keeper}: {type(error).__name__}: {error}")
    raise CheckpointError(
        f"no copy of rank {name.rank} after step {name.step} is in memory",
        found="; ".join(reasons),
        remedy="the last committed checkpoint is used",
    )


def _unchanged(engine: TrainingEngine, name: CopyName, copy: FetchedCopy) -> str:
    """Return the digest of the restored state.

    Raises:
        CheckpointError: it differs from the state that was copied.
    """
    form = StateForm(engine)
    found = _digest(form.described, map(bytes_of, form.layout.tensors), _rest(engine, copy.state["monitor"]))
    if found != copy.plan.sha256:
        raise CheckpointError(
            f"the state of rank {name.rank} differs from its copy after step {name.step}",
            found=found,
            expected=copy.plan.sha256,
        )
    return found


def _fill(engine: TrainingEngine, copy: FetchedCopy) -> None:
    """Load a copy into the engine through a file in memory, like a checkpoint's file."""
    descriptor = os.memfd_create("plinth-copy", os.MFD_CLOEXEC)
    try:
        sizes = {one.name: (one.dtype, one.shape, one.bytes) for one in copy.tensors}
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(tensor_file.header(sizes, metadata_of(Captured({}, copy.header))))
            for data in copy.bytes_of.values():
                stream.write(data)
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


def _rest(engine: TrainingEngine, monitor: Mapping[str, Any]) -> bytes:
    """Return the state that is not in tensors, as JSON."""
    state = {"counts": universal.counts(engine), "generators": snapshot.generators(), "monitor": monitor}
    return json.dumps(state).encode()


def _places(engine: TrainingEngine) -> list[tuple[int, int]]:
    """Return address and size of each tensor of the state. An address is not reused while a form has its tensor."""
    return [(tensor.data_ptr(), tensor.numel()) for tensor in engine.optimizer_tensors()]


def _described(tensors: Iterable[rank_part.Tensor], header: Mapping[str, Any]) -> bytes:
    """Return what a digest covers of a form: all of it but the places."""
    lines = [f"{one.name} {one.dtype} {one.torch_dtype} {one.shape} {one.bytes}\n" for one in tensors]
    return ("".join(lines) + json.dumps(header)).encode()


def _digest(described: bytes, data: Iterable[Any], rest: bytes) -> str:
    """Return one digest over the description and bytes of tensors, in order, and the rest of the state."""
    total = blake3(described)
    for part in data:
        total.update(part)
    total.update(rest)
    return digest_of_lines([total.hexdigest()])
