"""The job of a training run: submit or find it, follow it, cancel it.

    prepare (preparation) -> submit_or_find -> follow -> run_manifest -> checkpoint_manifest (manifests)

Does not belong here: the result of a run as manifests (manifests), the ranks (supervise/).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plinth import processes
from plinth.compute.context import Context
from plinth.errors import StoppedRunError, TrainingError
from plinth.launch.base import Handle, Launcher, choose
from plinth.launch.submission_rate import submit_within
from plinth.training import amendments
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of, result
from plinth.training.stopping import last_step
from plinth.training.supervise.result import JobResult
from plinth.training.telemetry.timeline import Event, Timeline, TimelineReader, last_event

POLL_S = 0.5

#: Lines of the log shown with a failure that nothing names.
LOG_LINES = 25

#: Seconds by which the time of a file may lie behind the clock.
_CLOCK_S = 0.05


def command(config: RunConfig) -> list[str]:
    """The command that a launcher starts on each node."""
    return processes.python("plinth.training.supervise.supervisor", str(config.directory.config))


def submit_or_find(ctx: Context, config: RunConfig, before: Callable[[], object] = lambda: None) -> Handle:
    """The job of this run: the one that is alive, or has finished and left a final checkpoint that verifies, or a
    new one, which resumes. A job that is alive is stopped first where the recipe amends the run.

    Args:
        before: called before a new job is submitted; what it raises keeps it from being. All that start work go through
            `operation.admission`, whose budget it asks.

    Raises:
        RecipeError: an amendment touches a step that was taken.
        LaunchError: it could not be submitted, or runs on another machine.
    """
    run, launcher = config.directory, launcher_of(config)
    known = launcher.find(run.root)
    if amendments.pending(config):
        _amend(config, launcher, known)
    alive = known is not None and launcher.poll(known).alive
    if known is not None and not alive:
        ended = result(config)
        if ended is not None and ended.status == "finished" and checkpoint.is_valid(run, last_step(config)):
            return known
        run.reopen()
    configuration.write(config)
    if alive:
        return launcher.submit(command(config), run.root, run.log)
    before()
    asked = config.launch
    chosen = choose(asked.kind, asked, config.supervision.grace_s)
    if not _is_announced(config):
        Timeline(run.events).append("submitted", launcher=asked.kind)
    return submit_within(
        run.root.parent.parent, asked.kind, asked.rate, lambda: chosen.submit(command(config), run.root, run.log)
    )


def _is_announced(config: RunConfig) -> bool:
    """Whether the last event says already that this job is submitted: no handle was written since.

    Its submitter was refused, or died; where it left a job, the launcher adopts it.
    """
    run, last = config.directory, last_event(config.directory.events)
    if last is None or (last["event"], last.get("launcher")) != ("submitted", config.launch.kind):
        return False
    return not run.handle.exists() or run.handle.stat().st_mtime < float(last["time"]) - _CLOCK_S


def _amend(config: RunConfig, launcher: Launcher, known: Handle | None) -> None:
    """Stop the job at the end of a step, and record the amendment if it touches no step that was taken."""
    amendments.check(config)
    if known is not None and launcher.poll(known).alive:
        launcher.cancel(known, config.supervision.grace_s + 5.0)
        amendments.check(config)  # with the steps that it took until then
    amendments.record(config)


def follow(ctx: Context, config: RunConfig, on_event: Callable[[Event], None] | None = None) -> JobResult:
    """Relay events from the beginning of the timeline until the job ends; the job does not depend on it.

    Raises:
        PlinthError: the error that a rank named, of its own class.
        TrainingError: the job failed otherwise, was stopped, or vanished; with the end of its log.
    """
    run, launcher = config.directory, launcher_of(config)
    reader, handle = TimelineReader(run.events), launcher.find(run.root)
    if handle is None:
        raise TrainingError(f"run {config.run_id} was never submitted", remedy="run the command that trains it")
    while True:
        alive = launcher.poll(handle).alive  # polled first, so that the last events of a job that ends are read below
        for event in reader.poll():
            if on_event is not None:
                on_event(event)
        if not alive:
            return _result_or_error(config, launcher)
        time.sleep(POLL_S)


def cancel(ctx: Context, config: RunConfig) -> None:
    """Signal the job to save and stop; kill it when it has not within the grace of the recipe."""
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None:
        launcher.cancel(handle, config.supervision.grace_s + 5.0)


def _result_or_error(config: RunConfig, launcher: Launcher) -> JobResult:
    ended = result(config)
    if ended is not None and ended.status == "finished":
        return ended
    if ended is not None and ended.failure is not None:
        raise ended.failure.error()
    if ended is not None and ended.status == "stopped":  # a stop is no failure, and needs no log
        raise StoppedRunError(
            f"run {config.run_id} stopped at step {ended.step}",
            found=ended.reason,
            expected=f"{config.total_steps} steps",
            remedy="run the same command again: it goes on from the last committed checkpoint",
        )
    how = "vanished: its supervisor was killed" if ended is None else f"{ended.status} at step {ended.step}"
    tail = launcher.logs(config.directory.log, LOG_LINES)
    kind = StoppedRunError if ended is None else TrainingError
    raise kind(
        f"run {config.run_id} {how}",
        found=(f"{ended.reason}; " if ended else "") + f"{config.directory.log} ends:\n{tail}",
        remedy="run the same command again: it goes on from the last committed checkpoint",
    )
