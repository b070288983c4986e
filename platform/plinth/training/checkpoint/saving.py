"""Saving of the full state of a run during training.

    save()   all ranks agree and start copying their state to host memory                          ─▶ training
    copy     runs parallel to forward and backward of the next step, which do not change the state; the update waits
             for the end of the copy, and then the writer starts
    writer   writes, hashes, flushes its rank's files; the leading writer commits once all files are complete
    poll()   receives the outcome; a failed save is logged, and the loop saves again, synchronously, within a step or
             two (`failed`), so at most one checkpoint interval is lost
    drain()  waits for the commit; if it failed, writes the same staged state again, synchronously

Saves never overlap. A second save waits for the first and logs the wait as `wait_s`. With `checkpoints.mode: sync`, or
after a failure, the rank itself writes, and a failed write raises an error. The stall is the time that training waits
in `save` and before an update.

Does not belong here: the content of the state (snapshot), the copy (staging), files and commit (rank_part), the process
that writes (writer/).
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from plinth.errors import PlinthError
from plinth.training.checkpoint import checkpoint, rank_part, selection, snapshot, writer
from plinth.training.checkpoint.rank_part import SharedSave, Timing, WritePlan
from plinth.training.checkpoint.staging import Arena, BackgroundCopy, StagingLayout
from plinth.training.checkpoint.writer import HEARTBEAT_S, WriterClient
from plinth.training.engine.engine import TrainingEngine
from plinth.training.shared_run.head import SESSION
from plinth.training.telemetry.timeline import Pulse, RankFailure, Timeline


class Saver:
    """Checkpoint saves of one rank. All methods except `poll` are collectives."""

    def __init__(self, engine: TrainingEngine, events: Timeline, *, follows: bool = False) -> None:
        """Start the writer process. If `follows`, writers of an interrupted save may still be at work.

        The leading one waits for the parts of ranks whose writers are alive. The writer of a lost rank's successor
        would be taken for that of the lost rank, so it starts when the leading one has ended.
        """
        self.engine, self.events, self._follows = engine, events, follows
        self.config, self.rank, self.run = engine.config, engine.rank, engine.config.directory
        self.mode = self.config.checkpoints.mode
        self._pulse, self._arena = Pulse(self.run.events), Arena()
        self._writer = self._start_writer() if self.mode == "async" and (self.rank.leads or not follows) else None
        self._plan: WritePlan | None = None  # the plan of the last save
        self._copying: BackgroundCopy | None = None  # the copy in progress
        self._hook: Any = None  # hook in the optimizer during the copy
        self._timing = Timing(0.0, 0.0, 0.0)
        self._waiting = False  # waiting for the writer's answer
        self.failed = False  # the last save of this rank was not committed

    def save(self, step: int, monitor: dict[str, Any]) -> None:
        """Copy the full state after `step` to host memory and have the writer save it as a checkpoint.

        Raises:
            DiskFullError, StorageError, CheckpointError: a synchronous save failed, and nothing was committed.
        """
        begun = time.monotonic()
        self._receive(wait=True)
        wait_s = time.monotonic() - begun
        if self._follows and not self.rank.leads:
            self._on_any_rank(False)  # the earlier leading writer has ended: its lock is taken
        if self.mode == "async" and not self.failed:
            self._writer = self._writer or self._start_writer()
            self._writer.wait_until_ready()
        if self._follows and self.rank.leads:
            self._on_any_rank(False)
        if self._follows:
            self._follows = self._on_any_rank(False)  # all earlier writers have ended: their locks are taken
        shared = self._new_save()
        if self.rank.leads or (shared is not None and shared.first == self.rank.index):
            self._prepare_staging(step)
        synchronous = self._on_any_rank(
            self.mode == "sync" or self.failed
        )  # disk space and writers are available from here on
        mode = "sync" if synchronous else "async"
        plan, layout = snapshot.plan(self.engine, step, monitor, mode, shared)
        text = plan.model_dump_json().encode()
        self.failed, self._plan = False, plan
        self._arena.reserve(layout.bytes + len(text))
        self._timing = Timing(begun, 0.0, wait_s)
        if synchronous:
            layout.copy(self._arena.block)
            del layout  # it references tensors
            self._write_here(self._timing)
            return
        self._arena.write(layout.bytes, text)
        self._waiting = True
        self._stage(layout, len(text))

    def poll(self) -> None:
        """Receive the writer's answer without waiting. Ranks may call this at different times."""
        self._receive(wait=False)

    def drain(self) -> None:
        """Return once the last save is committed.

        Raises:
            DiskFullError, StorageError, CheckpointError: the commit failed.
        """
        self._receive(wait=True)
        if self._on_any_rank(self.failed):
            self.failed = False
            if self._plan is not None and (
                self.rank.leads or (self._plan.shared is not None and self._plan.shared.adopts(self._plan))
            ):
                self._prepare_staging(self._plan.step)
            self._write_here(self._timing)

    def wait_until_copied(self) -> None:
        """Wait until the state is copied. Call this before any change of the state except an optimizer update."""
        if self._copying is not None:
            self._copying.wait()

    def interrupt(self) -> None:
        """End without the other ranks and without waiting for the writer. It commits the save in progress if every rank
        has staged its state."""
        self.wait_until_copied()
        if self._writer is not None:
            self._writer.leave()
            self._writer = None
        self._arena.close()

    def close(self) -> None:
        """End the writer process and free the shared memory."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._arena.close()

    def _prepare_staging(self, step: int) -> None:
        """Create an empty staging directory; if disk space is low, delete checkpoints that await upload."""
        policy, always = self.config.checkpoints, {self.config.audit_step, self.config.total_steps}
        if policy.upload is not None:
            removed = selection.free_space(self.run, policy, always, checkpoint.size_of_last(self.run))
            if removed:
                self.events.append("retired", steps=removed, reason="the disk is short", durable=True)
        checkpoint.stage(self.run, step)
        shutil.rmtree(rank_part.parts_folder(self.run, step), ignore_errors=True)  # of an earlier save of this step

    def _new_save(self) -> SharedSave | None:
        """Return the number that the leading rank gives to a save in a shared workspace, or None in a folder."""
        session = os.environ.get(SESSION)
        if not session:
            return None
        number: list[Any] = [uuid.uuid4().hex[:16]]
        dist.broadcast_object_list(number, src=0)
        first = self.rank.index - int(os.environ["LOCAL_RANK"])
        return SharedSave(number=number[0], session=session, first=first, ranks=self.config.launch.ranks_per_node)

    def _stage(self, layout: StagingLayout, plan_bytes: int) -> None:
        """Copy the state and tell the writer to save it. On CPUs the copy overlaps with the next step until its update.

        On GPUs the copy to page-locked memory runs at bus speed, so it completes before this method returns.
        """
        writer, timing, order = self._writer, self._timing, (layout.bytes, plan_bytes, self._arena.size)
        assert writer is not None

        def order_save(waited_s: float) -> None:
            writer.order(*order, timing._replace(stall_s=stall_s + waited_s))

        stall_s = time.monotonic() - timing.begun - timing.wait_s
        if self.rank.device.type == "cpu":
            self._copying = BackgroundCopy(layout, self._arena.block, order_save)
            optimizer = self.engine.deepspeed.basic_optimizer
            self._hook = optimizer.register_step_pre_hook(self._before_update)
            self._copying.start()
        else:
            layout.copy(self._arena.block)
            order_save(time.monotonic() - timing.begun - timing.wait_s - stall_s)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Wait for the copy before an update, which changes the state."""
        with self.engine.clock.within("checkpoint"):
            self.wait_until_copied()

    def _write_here(self, timing: Timing) -> None:
        """Write the checkpoint in this process, on all ranks together. If one rank fails, all ranks raise its error."""
        assert self._plan is not None
        plan, failure = self._plan, None
        self._on_any_rank(False)  # the staging directory exists
        try:
            rank_part.write(plan, self._arena.block.numpy().data, self._piecewise)
        except PlinthError as error:
            failure = error
        self._raise_together(failure)
        if plan.lead is not None:
            stall = time.monotonic() - timing.begun - timing.wait_s
            try:
                rank_part.commit(plan, plan.lead, timing._replace(stall_s=stall))
            except PlinthError as error:
                failure = error
        self._raise_together(failure)
        if plan.shared is not None and plan.shared.adopts(plan):
            try:
                writer.adopt(plan, plan.shared)
            except PlinthError as error:
                failure = error
        if plan.shared is not None:
            self._raise_together(failure)

    def _piecewise(self, work: Callable[[], object]) -> None:
        """Run one piece of a long write, then report progress to the watchdog."""
        work()
        self._pulse()

    def _raise_together(self, error: PlinthError | None) -> None:
        """If any rank passes an error, raise the first rank's error on every rank."""
        if not self._on_any_rank(error is not None):
            return
        failures: list[RankFailure | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, None if error is None else RankFailure.of(error))
        raise next(failure for failure in failures if failure is not None).error() from error

    def _start_writer(self) -> WriterClient:
        return WriterClient(self.run.root, self.rank.index, self._arena.fd)

    def _receive(self, wait: bool) -> None:
        """Receive the writer's answer to the save in progress, if there is one."""
        if self._copying is not None:
            if not wait and self._copying.is_alive():
                return
            self.wait_until_copied()
            self._hook.remove()
            self._copying = self._hook = None
        if self._writer is None or not self._waiting:
            return
        if wait:
            self._writer.hurry()
        while True:
            answer = self._writer.answer(HEARTBEAT_S if wait else 0.0)
            if answer is not None:
                break
            if not wait:
                return
            if self._writer.made_progress():
                self._pulse()
        self._waiting, failure = False, answer.get("failure")
        if failure is None:
            return
        self.failed = True
        if not self._writer.is_alive():
            self._writer.close()
            self._writer = None
            if self._plan is not None:
                writer.tell_machines(self._plan, failure)
        if self.rank.leads:
            step = self._plan.step if self._plan is not None else 0
            self.events.append("save_failed", step=step, **failure, durable=True)

    def _on_any_rank(self, value: bool) -> bool:
        """Return True if `value` is true on any rank. All ranks must call this, and all wait for each other."""
        box = torch.tensor(int(value), device=self.rank.device)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return bool(box.item())
