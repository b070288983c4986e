"""Training loop: resume, then take steps. Each step is a timeline event; some steps are followed by a checkpoint.

    batch ─► engine: gradient ─► skip? ─► update       on the device, in sequence
               ▲                   │ one copy
    next step ─┘                   ▼
                     read ─► monitor, timeline, guard ─► run · roll back · stop      on the host

On GPUs the host reads a step while the next step runs. Before a checkpoint, and on CPUs, it reads the step at once.
Step n always takes batch n. The run does not train on batches that the guard skips, and still ends at its last step.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from plinth.errors import CheckpointError, CorruptionError, TrainingError
from plinth.training.attempts import in_force
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.resume import SharedVerification
from plinth.training.checkpoint.saving import Saver
from plinth.training.config import RunConfig, layout_of
from plinth.training.corruption.replays import Mismatch, StepReplayer
from plinth.training.data import Batches, StepBatch
from plinth.training.engine.engine import Rank
from plinth.training.engine.skipped_update import SAVE_AGAIN, STOP_REQUESTED, Launched, Measured
from plinth.training.guard.rules import Intervention, ThroughputRule
from plinth.training.predicted_curve import MISSED, CurveWatch
from plinth.training.recovery.copies import Copier
from plinth.training.step_documents import WindowReporter
from plinth.training.step_report import require_finite, step_event, stopped
from plinth.training.stopping import Verdict, Watch, stopped_event
from plinth.training.supervise.host_checks import exclude
from plinth.training.telemetry.communication import StragglerDetector
from plinth.training.telemetry.profiler import StepProfiler
from plinth.training.telemetry.timeline import Timeline, timeline
from plinth.training.trainer import Trainer
from plinth.training.validation.validation import Validator


class Interrupt:
    """Signal handler that delays SIGTERM and SIGINT until the end of the step."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number


def train(config: RunConfig, rank: Rank, attempt: int) -> bool:
    """Train to the last step, from the newest committed checkpoint if there is one.

    Return True if the last step was reached. Return False if a signal ended the run; the state is then committed.

    Raises:
        TrainingError: the loss or the gradient is not finite and the guard is off, or the guard stops the run.
        CheckpointError, ResumeError: no committed checkpoint can be used.
        DiskFullError, StorageError: a checkpoint could not be written; the last checkpoint is intact.
    """
    run = TrainingRun(config, rank)
    return run.finish(run.resume(attempt))


class TrainingRun:
    """One run of a trainer, with its timeline, checkpoints, and the interventions of the guard."""

    def __init__(
        self,
        config: RunConfig,
        rank: Rank,
        interrupt: Interrupt | None = None,
        opened: Callable[[], Batches] | None = None,
        *,
        follows: bool = False,
    ) -> None:
        self.config, self.rank = config, rank
        self.interrupt, self.events = interrupt or Interrupt(), Timeline(config.directory.events)
        self.trainer = Trainer(config, rank, opened)
        self.copier: Copier | None = None
        self.saver = Saver(self.trainer.engine, self.events, follows=follows)
        self.verification = SharedVerification(config, rank)
        self.validator = Validator(config)
        self.replays = StepReplayer(config, rank) if config.replay_checks is not None else None
        self.throughput = ThroughputRule(config.guard.throughput, config.guard.window_steps)
        self.reporter = WindowReporter(config, self.events) if rank.leads else WindowReporter(None, self.events)
        self.signal, self._save_again = 0, False  # a failed save on any rank, to be repeated
        self.stragglers, self.profiler = StragglerDetector(config, rank), StepProfiler(config, rank)
        self.watch = Watch(config) if rank.leads else None
        self.verdict: Verdict | None = None  # verdict of the stopping rules, once they demand a stop
        promised = in_force(config) if rank.leads else None
        self.curve = CurveWatch(config, promised.curve) if promised and promised.curve else None
        self._last_reported = _last_step(config) if rank.leads else 0
        self._lag = 1 if rank.device.type == "cuda" else 0
        self._in_flight: deque[Launched] = deque()

    def finish(self, done: int) -> bool:
        """Train from step `done` to the last step. Return the result of `train`."""
        try:
            while (done < self.config.total_steps or self.owes(done)) and not self.signal:
                done = self.run(done)
            self.saver.drain()
            self.saver.close()
        finally:
            self.reporter.close()
        return self.signal in (0, STOP_REQUESTED) or (done == self.config.total_steps and not self.owes(done))

    def run(self, done: int) -> int:
        """Continue training after step `done`, and return the last valid step.

        The last valid step is the run's last step, the last step before a signal, or after a rollback the step of the
        restored checkpoint.
        """
        if self.owes(done) and not self._settle_earlier(done):
            return done
        self.trainer.engine.clock.begin()
        stream = self.trainer.batches(done + 1)
        for step in range(done + 1, self.config.total_steps + 1):
            self._begin_trace(step)
            copies = self._copies(step)
            launched = self._launch(stream, step)
            self.stragglers.send(step)
            self.saver.poll()
            saves, validates = self.config.saves_at(step) or self._save_again, self.validator.due(step)
            sampled = launched and self.replays is not None and self.replays.due(step)
            traced, owes = self.profiler.ends(step), self.owes(step)
            copies = copies and launched  # no rank waits for the others in a step that is left out
            at_once = saves or validates or traced or owes or copies or sampled or self.signal or not launched
            rollback = self._drain(0 if at_once else self._lag)
            if rollback is None and self.signal:
                rollback = self._drain(0)
            if rollback is None and self.replays is not None:
                rollback = self._check_replay(self.replays, step, sampled)
            if rollback is not None:
                return self.roll_back(rollback)
            if traced:
                self._end_trace(step)
            saves = saves or (self._save_again and not self._in_flight)
            if owes and self.signal in (0, STOP_REQUESTED):
                self._settle(step)
            if validates and self.signal in (0, STOP_REQUESTED):  # a rank that must stop has no time to validate
                self._validate(step)
            if saves or self.signal:
                self._save(step)
            if copies and not self.signal:
                self._copy(step)
            if self.signal and step < self.config.total_steps:
                self._emit_stop(step)
                return step
        return self.config.total_steps

    def owes(self, step: int) -> bool:
        """Return True if a hook must act after this step before the run continues or ends."""
        return self.trainer.hooks.due(step) is not None

    def _settle_earlier(self, done: int) -> bool:
        """Finish hook work that is pending from before step `done`. Return True if the run continues."""
        self._settle(done)
        if done:
            self._save(done)  # replaces the state before
        return not self.signal

    def _settle(self, step: int) -> None:
        """Let hooks finish their pending work after a step, unless a signal arrives first."""
        self._wait_until_copied()
        while (hook := self.trainer.hooks.due(step)) is not None:
            with self.trainer.engine.clock.within("exchange"):
                settled = hook.settle(step, lambda: self.interrupt.signal)
            if isinstance(settled, int):
                self.signal = settled
                return
            event, fields = settled
            self._emit(event, step=step, **fields, durable=True)

    def resume(self, attempt: int) -> int:
        """Load the newest committed checkpoint that verifies. Return its step, or 0 if the run starts from the
        beginning."""
        if self.copier is not None and self.copier.order.step is not None:
            if self._restore_copy(self.copier, self.copier.order.step, attempt):
                return self.copier.order.step
            self.trainer.begin()  # the engine may have parts of the copy
        begun = time.monotonic()
        step, rollbacks = self.verification.select(self.events)
        verified: dict[str, Any] = {} if step is None else {"verified_s": round(time.monotonic() - begun, 3)}
        self._emit_start(attempt, **verified)
        if step is not None:
            self.trainer.load(step)
            saved, ours = checkpoint.read_state(self.config.directory, step)["layout"], layout_of(self.config)
            if saved != ours:
                self._emit("reshaped", step=step, **{"from": saved, "to": ours}, durable=True)
            self._emit("resumed", step=step, attempt=attempt, checkpoint=checkpoint.name(step))
        else:
            self.trainer.keep_optimizer()
        self.trainer.guard.set_rollbacks(rollbacks)
        return step or 0

    def _restore_copy(self, copier: Copier, step: int, attempt: int) -> bool:
        """Load the state after a step from copies in memory. Return False on every rank if a rank has no intact
        copy."""
        begun = time.monotonic()
        try:
            monitor = copier.restore()
        except CheckpointError as error:
            self._emit("copy_failed", step=step, reason=str(error), durable=True)
            return False
        self.trainer.follow(step, monitor)
        seconds = round(time.monotonic() - begun, 3)
        self._emit_start(attempt, verified_s=seconds)
        restored = {"source": "memory", "seconds": seconds, "sha256": copier.restored}
        self._emit("resumed", step=step, attempt=attempt, **restored, durable=True)
        return True

    def _emit_start(self, attempt: int, **more: Any) -> None:
        """Log that the ranks are up."""
        self._emit(
            "run_started",
            attempt=attempt,
            ranks=self.config.ranks,
            device=self.rank.device.type,
            precision=self.trainer.engine.precision,
            zero_stage=self.config.parallel.zero_stage,
            total_steps=self.config.total_steps,
            **more,
        )

    def roll_back(self, made: Intervention) -> int:
        """Restore the state from before an intervention's window, and return the restored step. The run skips the
        window from then on."""
        self._in_flight.clear()
        self.stragglers.forget()
        self.profiler.forget()
        if self.replays is not None:
            self.replays.forget()
        if self.signal == STOP_REQUESTED:
            self.signal = 0  # the verdict remains, and the next step executes it
        self._wait_until_copied()
        self.saver.drain()  # a save in progress is committed, or fails, before the selection
        step, rollbacks = self.verification.select(self.events)
        if step is None:
            self.trainer.begin()
        else:
            with self.trainer.engine.clock.within("loading"):
                self.trainer.load(step)
        self.trainer.guard.set_rollbacks(rollbacks)
        self._emit("rolled_back", step=step or 0, undone=made.step - (step or 0), number=made.number, durable=True)
        return step or 0

    def _launch(self, stream: Iterator[StepBatch], step: int) -> bool:
        """Launch a step and return True. If a rollback's window contains the step, skip its batch and return False."""
        left_out = self.trainer.guard.leaves_out(step)
        if left_out is None:
            if self.replays is not None and self.replays.due(step):
                with self.trainer.engine.clock.within("replay"):
                    self.replays.begin(self.trainer.engine)
            with self.profiler.span(step):
                asked, in_flight = self.profiler.asked(), len(self._in_flight)
                self._in_flight.append(self.trainer.launch(stream, step, self._pending, asked, in_flight))
        else:
            with self.trainer.engine.clock.within("data"):
                next(stream)
            self._emit("skipped", step=step, rule=left_out.rule, window=[left_out.first, left_out.last])
        return left_out is None

    def _check_replay(self, replays: StepReplayer, step: int, sampled: bool) -> Intervention | None:
        """Replay a sampled step. Return a rollback if the replay differs.

        Raises:
            CorruptionError, TrainingError: the run must not continue on these machines.
        """
        if not sampled:
            self.trainer.replayed = self.trainer.replayed.after()
            return None
        self._wait_until_copied()
        begun = time.monotonic()
        with self.trainer.engine.clock.within("replay"):
            mismatch = replays.check(self.trainer, step)
        if mismatch is not None:
            return self._undo(mismatch, replays)
        record = self.trainer.replayed.after(equal=True, step=step, other_hosts=replays.other_hosts)
        self.trainer.replayed = record
        self._emit("replay_checked", step=step, samples=record.samples, seconds=round(time.monotonic() - begun, 3))
        return None

    def _undo(self, mismatch: Mismatch, replays: StepReplayer) -> Intervention:
        """Log a mismatch, and exclude faulty machines. Return the rollback to before it.

        Raises:
            CorruptionError, TrainingError: the run must not continue on these machines.
        """
        made = mismatch.rollback(self.trainer.replayed.last, len(self.trainer.guard.rollbacks) + 1)
        self._emit("intervention", **made.event(), durable=True)
        for fields in mismatch.device_errors():
            self._emit("device_error", **fields, durable=True)
        bad, most = mismatch.reports(), self.config.guard.max_rollbacks
        if bad and self.rank.leads:
            exclude(self.config.directory, bad)
        replays.wait()  # until rank 0 has written
        if bad:
            raise CorruptionError(
                f"step {mismatch.step} was computed wrong: {mismatch.reason}",
                expected="equal results on all devices",
                remedy="submit the run again: it continues from before the mismatch, without the machines in its file "
                "`excluded_hosts`; test the device before you delete its line",
            )
        if made.number > most:
            raise TrainingError(
                f"step {mismatch.step} was computed wrong: {mismatch.reason}",
                found=f"rollback {made.number} of the run",
                expected=f"at most {most} (training.guard.max_rollbacks)",
                remedy="test the devices of the named ranks, and submit the run again without the faulty one",
            )
        return made

    def _drain(self, in_flight: int) -> Intervention | None:
        """Read the numbers of launched steps until at most `in_flight` steps are unread. Return a rollback if a step
        requires it.

        Raises:
            TrainingError: the guard stops the run.
        """
        while len(self._in_flight) > in_flight:
            measured = self._in_flight.popleft().read()
            made = self._record(measured)
            require_finite(self.config, measured)
            last = made[-1] if made else None
            if last is not None and last.action == "stop":
                raise stopped(last)
            if last is not None and last.action == "rollback":
                return last
        return None

    def _record(self, measured: Measured) -> list[Intervention]:
        """Log a finished step on the timeline, and return the interventions, the most severe last."""
        self.signal = max(self.signal, measured.signal)
        self.profiler.learn(measured.trace)
        self._save_again = self._save_again or measured.signal == SAVE_AGAIN
        made: list[Intervention] = []
        if measured.timed_step:
            tokens = self.config.step_tokens(measured.timed_step)
            made = self.throughput.record(measured.step, tokens, measured.timed_step_s)
        made += self.trainer.record(measured)
        self.stragglers.record(measured.time)
        self._emit_step(measured)
        if self.watch is not None and self.verdict is None:
            self.verdict = self.watch.verdict_at(measured.step)
        for missed in self.curve.missed(measured.step) if self.curve is not None else ():
            self._emit(MISSED, **missed, durable=True)
        for intervention in made:
            self._emit("intervention", **intervention.event(), durable=True)
            self.reporter.report(intervention)
        return made

    def _save(self, step: int) -> None:
        self.saver.engine = self.trainer.engine  # a new engine after a rollback to the beginning
        with self.trainer.engine.clock.within("save"):
            state = self.trainer.state()
            self.saver.save(step, {**state, **self.validator.state(step)})
        for event, fields in self.trainer.hooks.saved(state):
            self._emit(event, step=step, **fields)
        self._save_again = False

    def _copy(self, step: int) -> None:
        """Copy the state to the memory of two nodes."""
        assert self.copier is not None
        self.copier.engine = self.trainer.engine
        with self.trainer.engine.clock.within("save"):
            state = {**self.trainer.state(), **self.validator.state(step)}
            self.copier.copy(step, len(self.trainer.guard.rollbacks), state)

    def _copies(self, step: int) -> bool:
        """Return True if the state will be copied after this step. The previous copy has then arrived, or failed."""
        if self.copier is None or not self.copier.due(step):
            return False
        with self.trainer.engine.clock.within("save"):
            failures = self.copier.settle()
        for reason in failures:
            self.events.append("copy_failed", rank=self.rank.index, step=step, reason=reason)
        return True

    def _wait_until_copied(self) -> None:
        """Wait for the copies of the state in progress, before a change that is not an update."""
        self.saver.wait_until_copied()
        if self.copier is not None:
            self.copier.wait_until_copied()

    def interrupted(self) -> None:
        """End without the other ranks, after the loss of one. A save in progress is committed if every rank has staged
        its state."""
        self._in_flight.clear()
        self.reporter.close()
        self.saver.interrupt()
        if self.copier is not None:
            self.copier.abandon()
        if self.replays is not None:
            self.replays.close()
        self.trainer.engine.deepspeed.destroy()

    def _begin_trace(self, step: int) -> None:
        if not self.profiler.waits:
            return
        with self.trainer.engine.clock.within("profile"):
            self.profiler.before(step)
        for missed in self.profiler.missed():
            self._emit("profiled", step=step, **missed)

    def _end_trace(self, step: int) -> None:
        with self.trainer.engine.clock.within("profile"):
            written = self.profiler.finish()
        self._emit("profiled", step=step, **written)

    def _validate(self, step: int) -> None:
        with self.trainer.engine.clock.within("evaluation"):
            found: dict[str, Any] = self.validator.evaluate(self.trainer.engine, step).event()
        self._emit("evaluated", step=step, tokens=self.config.tokens_through(step), **found)

    @property
    def _pending(self) -> int:
        """Return this rank's request to all ranks: a received signal, a stop by a stopping rule, or a new save after a
        failed save."""
        if self.interrupt.signal or self.verdict is not None:
            return self.interrupt.signal or STOP_REQUESTED
        return SAVE_AGAIN if self.saver.failed else 0

    def _emit_stop(self, step: int) -> None:
        """Log the reason why the run ends at this step: a signal or a stopping rule. Only the leading rank has the
        rule's verdict."""
        if self.signal != STOP_REQUESTED:
            self._emit("signal", signal=signal.Signals(self.signal).name, step=step, durable=True)
        elif self.verdict is not None:
            self._emit("stopped_by_rule", **stopped_event(self.config.stopping, step, self.verdict), durable=True)

    def _emit(self, event: str, *, durable: bool = False, **fields: Any) -> None:
        if self.rank.leads:
            self.events.append(event, durable=durable, **fields)

    def _emit_step(self, measured: Measured) -> None:
        compared = self.stragglers.at(measured.step)
        redone = measured.step <= self._last_reported
        self._emit("step", **step_event(self.trainer, measured, compared, redone=redone))
        self._last_reported = max(self._last_reported, measured.step)
        changed = self.stragglers.changed(compared) if self.rank.leads else None
        if changed is not None:
            self._emit("stragglers", step=measured.step, **changed)


def _last_step(config: RunConfig) -> int:
    """Return the highest step on the timeline."""
    return max(timeline(config.directory.events).steps, default=0)
