"""A run on one rank of a trainer that is not Plinth's: resume, events, stop requests, exit status.

The supervisor starts the trainer's command once per rank, with torchrun's variables. Rank 0 writes the timeline. A stop
request (a signal, a stopping rule) reaches all ranks at the same step: `step` reduces it over `torch.distributed`, one
step late, so that no rank waits for the device.

Exit status of the process: 0 after the last step is committed, 75 after a stop with a commit, the status of a
`PlinthError`, anything else for a crash, which the supervisor restarts within the recipe's limits.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from plinth import private
from plinth.errors import PlinthError, ResumeError, TrainingError
from plinth.model.hugging_face import hf_config
from plinth.sdk import commit
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.parameters import trainer
from plinth.training.stopping import Verdict, Watch, stopped_event
from plinth.training.supervise import nodes, rank_watch
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED
from plinth.training.telemetry.devices import memory_of
from plinth.training.telemetry.timeline import RankFailure, Timeline, smoothed, timeline

#: Request to stop because of a stopping rule; signals have their own numbers.
BY_RULE = 1024


def run(packages: Sequence[str] = ()) -> Run:
    """Return the run of this process, as a context manager.

    Args:
        packages: distributions whose versions the trainer's statement lists, in addition to torch.

    Raises:
        TrainingError: this process was not started as a rank of a run.
    """
    path = os.environ.get(nodes.RUN)
    if path is None:
        raise TrainingError(
            "this process does not belong to a run",
            found=f"no variable {nodes.RUN}",
            expected="a process that Plinth has started",
            remedy="set training.trainer.command in the recipe, then `plinth run` starts the trainer",
        )
    return Run(Path(path), os.environ, packages)


class Run:
    """A run on this rank. Use it as a context manager around the whole training.

    Attributes:
        config: the resolved run, with the recipe's model, optimizer and batch for the trainer to use.
        rank, world: number of this process and number of processes.
        resumed: number of steps in the checkpoint to load; 0 starts from the beginning.
        checkpoint: folder of the trainer's files after step `resumed`, verified and not to be changed, or None.
        scratch: folder for the trainer's output; it is deleted at each start of the ranks.
        stopping: True once the run must commit the current step and end.
    """

    def __init__(self, path: Path, environment: Mapping[str, str], packages: Sequence[str] = ()) -> None:
        self.config = configuration.load(path)
        self.directory, self.events = self.config.directory, Timeline(self.config.directory.events)
        self.rank, self.world = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
        self.attempt, self.resumed = (int(environment.get(name, "0")) for name in (nodes.ATTEMPT, nodes.RESUME))
        folder = checkpoint.path(self.directory, self.resumed) / trainer.FOLDER
        self.checkpoint = folder if self.resumed else None
        self.scratch = self.directory.staging / trainer.FOLDER
        self.packages = tuple(packages)
        self.done = self.committed = self.resumed
        self.loss_ema: float | None = None
        self._signal = self._stop = 0
        self._verdict: Verdict | None = None
        self._request: tuple[Any, torch.Tensor] | None = None  # reduction of the step before
        self._begun, self._waited = time.perf_counter(), 0.0
        self._stepped = False

    def __enter__(self) -> Run:
        private.for_torch()
        rank_watch.die_with_supervisor()
        rank_watch.install(self.directory, self.rank)
        self.handle_signals()
        if self.resumed:
            self._require_own_state()
        self._reported = max(timeline(self.directory.events).steps, default=0) if self.leads else 0
        self._watch = Watch(self.config) if self.leads else None
        self._emit(
            "run_started",
            attempt=self.attempt,
            ranks=self.world,
            device="cuda" if torch.cuda.is_available() else "cpu",
            total_steps=self.config.total_steps,
            trainer=list(self.config.trainer.command) if self.config.trainer else [],
        )
        if self.resumed:
            self._emit("resumed", step=self.resumed, attempt=self.attempt, checkpoint=checkpoint.name(self.resumed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process with the status that the supervisor expects. Errors other than Plinth's are raised."""
        if error is None or (isinstance(error, SystemExit) and not error.code):
            error = self._unfinished()
        if isinstance(error, PlinthError):
            print(f"rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            with contextlib.suppress(PlinthError):  # the disk may be what failed
                failure = RankFailure.of(error).model_dump()
                self.events.append("rank_failed", rank=self.rank, attempt=self.attempt, **failure)
            raise SystemExit(error.exit_code) from error
        if error is None and not self.final:
            raise SystemExit(EXIT_PREEMPTED)

    @property
    def leads(self) -> bool:
        """True on the rank that writes the timeline and commits."""
        return self.rank == 0

    @property
    def stopping(self) -> bool:
        """True once the run must commit the current step and end."""
        return bool(self._stop) or self.done >= self.config.total_steps

    @property
    def final(self) -> bool:
        """True if the current step is the run's last one."""
        return self.done >= self.config.total_steps or self._stop == BY_RULE

    @property
    def model(self) -> dict[str, Any]:
        """Content of `config.json` of the recipe's model, for `AutoConfig.for_model(**run.model)`."""
        config = self.config
        dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(config.precision, "float32")
        return hf_config(config.model, config.vocab_size, config.sequence_tokens, dtype, config.end_of_text)

    def handle_signals(self) -> None:
        """Delay SIGTERM and SIGINT until the end of the step. Call it again if the trainer installs its own handlers,
        which would end the run without a commit."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def begin(self) -> None:
        """Mark the moment at which a step has its batch. Optional: the time since the previous step is then reported as
        the wait for data, and the trainer's start is not part of the first step."""
        now = time.perf_counter()
        if self._stepped:
            self._waited = now - self._begun
        else:
            self._begun = now

    def step(
        self,
        step: int,
        *,
        loss: float,
        tokens: int | None = None,
        grad_norm: float | None = None,
        lr: float | None = None,
    ) -> bool:
        """Report a finished step, and return True if the run continues with another step. All ranks must call it.

        Args:
            step: number of the step, counted from 1.
            loss: mean loss of the step over all ranks; only rank 0 reports it.
            tokens: number of tokens trained so far as the trainer counts them, to be compared with the order.

        Raises:
            TrainingError: the step is not the next one, the loss is not finite, or the trainer has counted other
                tokens.
        """
        self._require_next(step, loss, tokens)
        self.done, seconds = step, time.perf_counter() - self._begun
        self.loss_ema = smoothed(self.loss_ema, loss)
        if self.leads:
            measured = {"loss": loss, "loss_ema": self.loss_ema, "grad_norm": grad_norm, "lr": lr}
            self._emit_step(step, seconds, {name: value for name, value in measured.items() if value is not None})
            if self._watch is not None and self._verdict is None:
                self._verdict = self._watch.verdict_at(step)
        self._stop = self._agreed(self._signal or (BY_RULE if self._verdict is not None else 0))
        self._begun, self._waited, self._stepped = time.perf_counter(), 0.0, True
        return not self.stopping

    def saves_at(self, step: int) -> bool:
        """Return True if the recipe, or the end of the run, requires a commit after this step."""
        return step % self.config.checkpoints.every_steps == 0 or (step == self.done and self.stopping)

    def commit(self, folder: Path | str, step: int, *, model: Path | str | None = None) -> None:
        """Commit a folder that the trainer has written as the checkpoint of the current step. All ranks must call it.

        The folder moves into the checkpoint; it may have any files. The commit is atomic: staged, hashed by all ranks,
        flushed, renamed and recorded with the trainer's key. If the folder, or `model`, is a Hugging Face folder, the
        checkpoint can be evaluated and released. The last checkpoint needs one.

        Args:
            model: folder with `config.json` and safetensors that the trainer's own script has converted; it moves too.

        Raises:
            CheckpointError: the folder has links or no files, or its model is not the recipe's model.
            TrainingError: the step is not the current one.
            DiskFullError, StorageError, SignatureError: nothing was committed.
        """
        if step != self.done:
            raise TrainingError(f"a commit of step {step}", found=f"step {self.done} is the current step")
        done = commit.commit(self, Path(folder), None if model is None else Path(model))
        self.committed = step
        if self.leads:
            now = time.perf_counter()
            seconds = round(now - self._begun, 3)  # with the trainer's own writing
            self._emit("checkpoint", step=step, bytes=done, seconds=seconds, stall_s=seconds, wait_s=0.0, mode="sync",
                       durable=True)  # fmt: skip
            commit.retire(self)
            if self._stop == BY_RULE and self._verdict is not None:
                self._emit("stopped_by_rule", **stopped_event(self.config.stopping, step, self._verdict), durable=True)
            elif self.stopping and not self.final:
                self._emit("signal", signal=signal.Signals(self._stop).name, step=step, durable=True)
        self._begun = time.perf_counter()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _require_own_state(self) -> None:
        """Check that the checkpoint to load belongs to this run with these settings, and continue its loss curve."""
        state = json.loads((checkpoint.path(self.directory, self.resumed) / checkpoint.STATE).read_bytes())
        expected = configuration.identity(self.config, self.resumed)
        if state["identity"] != expected:
            raise ResumeError(
                f"checkpoint {checkpoint.name(self.resumed)} belongs to a run with other settings",
                found=state["identity"],
                expected=expected,
            )
        self.loss_ema = state["monitor"]["loss_ema"]

    def _require_next(self, step: int, loss: float, tokens: int | None) -> None:
        if step != self.done + 1:
            raise TrainingError(
                f"the trainer reported step {step}",
                found=f"step {self.done} is the last step",
                expected=f"step {self.done + 1}",
                remedy="load `run.checkpoint` at the start; `run.resumed` is the number of its steps",
            )
        if self.leads and not math.isfinite(loss):
            raise TrainingError(f"step {step} is not finite", found=f"loss {loss}", expected="a finite loss")
        expected = self.config.tokens_through(step)
        if tokens is not None and tokens != expected:
            raise TrainingError(
                f"the trainer has trained on other batches than the order has until step {step}",
                found=f"{tokens:,} tokens",
                expected=f"{expected:,} tokens",
                remedy="let micro batch x accumulation x ranks equal training.global_batch_sequences",
            )

    def _emit_step(self, step: int, seconds: float, measured: Mapping[str, float]) -> None:
        config = self.config
        self._emit(
            "step",
            step=step,
            **measured,
            tokens=config.tokens_through(step),
            tokens_per_s=round(config.step_tokens(step) / seconds, 1),
            step_s=round(seconds, 6),
            data_wait_s=round(self._waited, 4),
            **memory_of(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            **({"redone": True} if step <= self._reported else {}),
        )
        self._reported = max(self._reported, step)

    def _agreed(self, request: int) -> int:
        """Return the largest request of all ranks. With several ranks it is that of the step before."""
        if self.world == 1:
            return request
        if not (dist.is_available() and dist.is_initialized()):
            raise TrainingError(
                f"{self.world} ranks cannot agree when to stop",
                found="torch.distributed is not initialized",
                expected="a process group of all ranks before the first step",
            )
        box = torch.tensor(request, device=commit.device_of_group())
        before, self._request = self._request, (dist.all_reduce(box, op=dist.ReduceOp.MAX, async_op=True), box)
        if before is None:
            return 0
        before[0].wait()
        return int(before[1].item())

    def _unfinished(self) -> TrainingError | None:
        """Return the error of a trainer that ended too early, or None."""
        if self.stopping and self.committed == self.done:
            return None
        return TrainingError(
            f"the trainer ended after step {self.done} of {self.config.total_steps}",
            found=f"the last commit is of step {self.committed}",
            expected="a commit of the last step, or of the step at which `run.step` returned False",
        )

    def _emit(self, event: str, **fields: Any) -> None:
        if self.leads:
            self.events.append(event, **fields)
