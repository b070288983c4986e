"""The training loop: resume, then steps, each told to the timeline, some followed by a checkpoint."""

from __future__ import annotations

import math
import resource
import signal
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.errors import CheckpointError, TrainingError
from plinth.training import checkpoint, snapshot
from plinth.training.config import RunConfig
from plinth.training.data import Batch, batches_of, fingerprint_of
from plinth.training.engine import Engine, Rank, open_engine
from plinth.training.schedule import learning_rate
from plinth.training.telemetry import Timeline, timeline


@dataclass
class Monitor:
    """What is smoothed over steps; part of the checkpoint, so that a resumed curve goes on where it was."""

    loss_ema: float | None = None

    def update(self, loss: float) -> None:
        """Exponential mean with a half-life of about 14 steps."""
        self.loss_ema = loss if self.loss_ema is None else 0.95 * self.loss_ema + 0.05 * loss


class Interrupt:
    """Remembers SIGTERM and SIGINT until the end of the step."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number


@dataclass(frozen=True)
class Measured:
    """One step as all ranks saw it."""

    loss: float
    grad_norm: float
    lr: float
    batch: str  # what was seen, in 64 bits
    signal: int  # the highest signal number any rank has received
    data_wait_s: float
    step_s: float


def train(config: RunConfig, rank: Rank, attempt: int) -> bool:
    """Train to the last step, from the newest committed checkpoint if there is one.

    Returns whether the last step was reached; False after a signal, with the state committed.

    Raises:
        TrainingError: the loss or the gradient is not finite.
        CheckpointError, ResumeError: nothing committed can be used.
        DiskFullError, StorageError: a checkpoint could not be written; the last one is intact.
    """
    interrupt, events = Interrupt(), Timeline(config.directory.events)
    engine, batches = open_engine(config, rank), batches_of(config, rank.index)
    monitor = Monitor()
    done = resume(engine, events, monitor, attempt)
    seen = _last_step(config) if rank.leads else 0
    stream = batches(done + 1)
    for step in range(done + 1, config.total_steps + 1):
        measured = train_step(engine, stream, step, interrupt.signal)
        monitor.update(measured.loss)
        if rank.leads:
            _report(events, config, step, measured, monitor, redone=step <= seen)
        _require_finite(step, measured)
        if config.saves_at(step) or measured.signal:
            _save(engine, events, step, monitor)
        if measured.signal and step < config.total_steps:
            if rank.leads:
                events.append("signal", signal=signal.Signals(measured.signal).name, step=step, durable=True)
            return False
    return True


def train_step(engine: Engine, stream: Any, step: int, pending: int) -> Measured:
    """Take the next batch, train on it, and agree with the other ranks on what happened."""
    config = engine.config
    started = time.perf_counter()
    batch: Batch = next(stream)
    waited = time.perf_counter() - started
    lr = learning_rate(config.optimizer, *config.progress(step))
    loss, norm = engine.train_step(batch, lr)
    words = fingerprint_of(batch, engine.rank.index)
    shared = torch.stack([loss, *(torch.tensor(word, dtype=torch.float64) for word in words)])
    received = torch.tensor(float(pending), dtype=torch.float64)
    shared, received = _sum(shared, engine.rank), _max(received, engine.rank)
    first, second = int(shared[1]) % 2**32, int(shared[2]) % 2**32
    return Measured(
        loss=float(shared[0]) / config.ranks,
        grad_norm=norm,
        lr=lr,
        batch=f"{first:08x}{second:08x}",
        signal=int(received),
        data_wait_s=waited,
        step_s=time.perf_counter() - started,
    )


def resume(engine: Engine, events: Timeline, monitor: Monitor, attempt: int) -> int:
    """Load the newest committed checkpoint that verifies; returns its step, or 0 for a fresh start."""
    config, run = engine.config, engine.config.directory
    step = _agreed(_choose(config, events) if engine.rank.leads else None)
    if engine.rank.leads:
        events.append(
            "run_started",
            attempt=attempt,
            ranks=config.ranks,
            device=engine.rank.device.type,
            precision=engine.precision,
            zero_stage=config.parallel.zero_stage,
            total_steps=config.total_steps,
        )
    if step is None:
        return 0
    state = snapshot.load(engine, step)
    monitor.loss_ema = state["monitor"]["loss_ema"]
    if engine.rank.leads:
        events.append("resumed", step=step, attempt=attempt, checkpoint=str(checkpoint.path(run, step).name))
    return step


def _choose(config: RunConfig, events: Timeline) -> int | CheckpointError | None:
    """On the leading rank: clean up, then the newest checkpoint to trust. Errors go to all ranks."""
    run = config.directory
    checkpoint.clean(run)
    try:
        step, refused = checkpoint.newest_valid(run)
    except CheckpointError as error:
        return error
    for bad, reason in refused:
        events.append("refused", step=bad, checkpoint=checkpoint.name(bad), reason=str(reason), durable=True)
        checkpoint.refuse(run, bad)
    return step


def _agreed(choice: int | CheckpointError | None) -> int | None:
    """The leading rank's choice on every rank; its error is raised everywhere."""
    box: list[Any] = [choice]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], CheckpointError):
        raise box[0]
    step: int | None = box[0]
    return step


def _save(engine: Engine, events: Timeline, step: int, monitor: Monitor) -> None:
    started = time.perf_counter()
    commit = snapshot.save(engine, step, asdict(monitor))
    if commit is None:
        return
    config = engine.config
    removed = checkpoint.retain(config.directory, config.checkpoints.keep_last, {config.audit_step, config.total_steps})
    seconds = round(time.perf_counter() - started, 3)
    events.append("checkpoint", step=step, bytes=commit.bytes, seconds=seconds, removed=removed, durable=True)


def _report(
    events: Timeline, config: RunConfig, step: int, measured: Measured, monitor: Monitor, *, redone: bool
) -> None:
    events.append(
        "step",
        step=step,
        loss=measured.loss,
        grad_norm=measured.grad_norm,
        lr=measured.lr,
        loss_ema=monitor.loss_ema,
        batch=measured.batch,
        tokens=config.tokens_through(step),
        tokens_per_s=round(config.step_tokens(step) / measured.step_s, 1),
        data_wait_s=round(measured.data_wait_s, 4),
        step_s=round(measured.step_s, 4),
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **({"redone": True} if redone else {}),
    )


def _require_finite(step: int, measured: Measured) -> None:
    if not (math.isfinite(measured.loss) and math.isfinite(measured.grad_norm)):
        raise TrainingError(
            f"step {step} is not finite",
            found=f"loss {measured.loss}, gradient norm {measured.grad_norm}",
            expected="finite numbers",
            remedy="lower optimizer.lr, lengthen the warm-up, or look at the batch: `plinth batch RUN STEP`",
        )


def _last_step(config: RunConfig) -> int:
    """The highest step the timeline already tells of."""
    return max(timeline(config.directory.events).steps, default=0)


def _sum(values: Tensor, rank: Rank) -> Tensor:
    return _reduced(values, rank, dist.ReduceOp.SUM)


def _max(values: Tensor, rank: Rank) -> Tensor:
    return _reduced(values, rank, dist.ReduceOp.MAX)


def _reduced(values: Tensor, rank: Rank, operation: Any) -> Tensor:
    moved = values.to(rank.device)
    dist.all_reduce(moved, op=operation)
    return moved.cpu()
