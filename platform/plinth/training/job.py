"""Job of a training run: submit or find, follow, amend, cancel.

    prepare (preparation) -> submit_or_find -> follow -> run_manifest -> checkpoint_manifest (manifests)

Does not belong here: the result of a run as manifests (manifests), the ranks (supervise/).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plinth import processes
from plinth.compute.context import Context
from plinth.errors import MissingError, RecipeError, StoppedRunError, StorageError, TrainingError
from plinth.launch.base import HANDLE, Handle, Launcher, choose
from plinth.launch.submission_rate import submit_within
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.shares import fetch_whole
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.parameters import trainer
from plinth.training.run_state import launcher_of, result
from plinth.training.shared_run.head import CONFIG, seen_change
from plinth.training.shared_run.shipping import ALLOWANCE, give, newest_log, refresh, require_free
from plinth.training.stopping import last_step
from plinth.training.supervise.result import JobResult, SubmittedNumbers, read_allowance
from plinth.training.telemetry.timeline import Event, Timeline, TimelineReader, last_event, read_events

POLL_S = 0.5

#: Seconds between two reads of what another machine has shipped.
REFRESH_S = 2.0

#: Lines of the log shown with an unnamed failure.
LOG_LINES = 25

#: Seconds by which a file's time may lag behind the clock.
_CLOCK_S = 0.05


def command(config: RunConfig, grant: int) -> list[str]:
    """Return the command that a launcher starts on each node. A job from a bucket accepts no older head than this
    machine has seen.

    Args:
        grant: number of the grant of rank-seconds that the job must find; 0 if it has no limit.
    """
    uri = Workspace(config.workspace).uri
    place = f"{uri}/runs/{config.run_id}/config.json" if uri else str(config.directory.config)
    numbers = SubmittedNumbers(grant, seen_change(config.directory) if uri else 0)
    words = [place, *trainer.option(config.trainer), *numbers.options]
    return processes.python("plinth.training.supervise.supervisor", *words)


def known_grant(config: RunConfig) -> int:
    """Return the number of the grant in a run's folder, or 0 if there is none."""
    found = read_allowance(config.directory)
    return 0 if found is None else found.number


def submit_or_find(ctx: Context, config: RunConfig, before: Callable[[], int] | None = None) -> Handle:
    """Return the live job of this run, or its finished job if the final checkpoint verifies.

    Otherwise submit a new job, which resumes the run. If the recipe amends the run, a live job is stopped first.

    Args:
        before: called before a new job is submitted; an exception prevents the submission. It returns the number of
            the job's grant, or 0 without a limit. Commands pass `operation.admission`, which checks the budget.

    Raises:
        ResumeError: the run's configuration was edited.
        RecipeError: an amendment affects a step that was taken.
        LaunchError: the job could not be submitted, or runs on another machine.
    """
    configuration.require_prepared(config)
    run = config.directory
    refresh(run)
    launcher = launcher_of(config)
    known = launcher.find(run.root)
    if pending(config):
        _amend(config, launcher, known)
    alive = known is not None and launcher.poll(known).alive
    if known is not None and not alive:
        ended = result(config)
        if ended is not None and ended.status == "finished":
            fetch_whole(config, last_step(config))
        if ended is not None and ended.status == "finished" and checkpoint.is_valid(run, last_step(config)):
            return known
        run.reopen()
    if not alive:
        require_free(run)
    configuration.write(config)
    if alive:
        return launcher.submit(command(config, known_grant(config)), run.root, run.log)
    grant = before() if before is not None else known_grant(config)
    give(run, CONFIG, ALLOWANCE, *(f"contracts/{path.name}" for path in sorted(run.contracts.glob("*.json"))))
    words, asked = command(config, grant), config.launch
    chosen = choose(asked.kind, asked, config.supervision.grace_s)
    if not _is_announced(config):
        Timeline(run.events).append("submitted", launcher=asked.kind)
    handle = submit_within(
        run.root.parent.parent, asked.kind, asked.rate, lambda: chosen.submit(words, run.root, run.log)
    )
    give(run, HANDLE)
    return handle


def _is_announced(config: RunConfig) -> bool:
    """Return True if the last event already announces the submission of this job, but no handle was written since.

    The earlier submission was rejected or its process died. If that process started a job, the launcher adopts the job.
    """
    run, last = config.directory, last_event(config.directory.events)
    if last is None or (last["event"], last.get("launcher")) != ("submitted", config.launch.kind):
        return False
    return not run.handle.exists() or run.handle.stat().st_mtime < float(last["time"]) - _CLOCK_S


def _amend(config: RunConfig, launcher: Launcher, known: Handle | None) -> None:
    """Stop a live job at the end of a step, then record the amendment. Raise an error if it affects a past step."""
    check(config)
    if known is not None and launcher.poll(known).alive:
        launcher.cancel(known, config.supervision.grace_s + 5.0)
        check(config)  # with the steps taken until the stop
    record(config)


def follow(ctx: Context, config: RunConfig, on_event: Callable[[Event], None] | None = None) -> JobResult:
    """Pass all events of the timeline to `on_event` until the job ends. The job runs on if this process ends.

    Raises:
        PlinthError: the error that a rank reported, in its own class.
        TrainingError: the job failed in another way, was stopped, or vanished. The error contains the end of the job's
            log.
    """
    run, launcher = config.directory, launcher_of(config)
    reader, handle = TimelineReader(run.events), launcher.find(run.root)
    if handle is None:
        raise TrainingError(f"run {config.run_id} was never submitted", remedy="run `plinth run`")
    refreshed = float("-inf")
    while True:
        alive = launcher.poll(handle).alive  # polled first, so the last events of an ending job are read below
        if time.monotonic() - refreshed > REFRESH_S or not alive:
            refreshed = time.monotonic()
            _refresh(run, alive)
        for event in reader.poll():
            if on_event is not None:
                on_event(event)
        if not alive:
            return _result_or_error(config, launcher)
        time.sleep(POLL_S)


def _refresh(run: RunDirectory, alive: bool) -> None:
    """Fetch what the machines of a job have shipped. An outage of the bucket is an error only once the job has
    ended."""
    try:
        refresh(run)
    except StorageError:
        if not alive:
            raise


def cancel(ctx: Context, config: RunConfig) -> None:
    """Signal the job to save and stop. Kill it after the recipe's grace period.

    Raises:
        LaunchError: the job is on another machine.
    """
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is None or not launcher.poll(handle).alive:
        require_free(config.directory)
    if handle is not None:
        launcher.cancel(handle, config.supervision.grace_s + 5.0)


def _result_or_error(config: RunConfig, launcher: Launcher) -> JobResult:
    ended = result(config)
    if ended is not None and ended.status == "finished":
        return ended
    if ended is not None and ended.failure is not None:
        raise ended.failure.error()
    if ended is not None and ended.status == "stopped":  # a stop is not a failure and needs no log
        raise StoppedRunError(
            f"run {config.run_id} stopped at step {ended.step}",
            found=ended.reason,
            expected=f"{config.total_steps} steps",
            remedy="run the same command again to resume from the last committed checkpoint",
        )
    how = "vanished, because its supervisor was killed" if ended is None else f"{ended.status} at step {ended.step}"
    tail = launcher.logs(newest_log(config.directory), LOG_LINES)
    kind = StoppedRunError if ended is None else TrainingError
    committed = checkpoint.committed(config.directory)
    raise kind(
        f"run {config.run_id} {how}",
        found=(f"{ended.reason}; " if ended else "") + f"{config.directory.log} ends:\n{tail}",
        remedy="run the same command again to resume from the last committed checkpoint"
        if committed
        else "correct what the log reports, then run the same command again; no checkpoint was committed",
    )


# Amendments: change the global batch or the row length of a started run for future steps.
#
#     recipe: training.changes += {from_step, global_batch_sequences and/or sequence_tokens, reason}
#     the job saves and stops -> past steps are compared -> event `amended` -> the job resumes
#
# The run keeps its id and its checkpoints: the identity of a checkpoint covers the steps up to it, so earlier
# checkpoints stay valid and later ones include the amendment. A change of a past step is refused.
#
# Does not belong here: stopping and starting of jobs (`job`).


def current(config: RunConfig) -> RunConfig | None:
    """Return the configuration that the run's jobs use, or None before the first job."""
    try:
        return configuration.load(config.directory.config)
    except MissingError:
        return None


def pending(config: RunConfig) -> bool:
    """Return True if the recipe has amendments that are not in the configuration of the run's jobs yet."""
    known = current(config)
    return known is not None and known.amendments != config.amendments


def reached(config: RunConfig) -> int:
    """Return the last step that is on the timeline or in a committed checkpoint."""
    events = read_events(config.directory.events)
    last = max((int(event["step"]) for event in events if event["event"] == "step"), default=0)
    return max([last, *checkpoint.committed(config.directory)])


def check(config: RunConfig) -> None:
    """Raise an error if an amendment affects past steps.

    Raises:
        RecipeError: the amendment changes a past step, or the run would end before the proof that it can be resumed.
    """
    known, done = current(config), reached(config)
    if known is None:
        return
    if known.steps.through(done) != config.steps.through(done):
        raise RecipeError(
            f"amendments in training.changes affect past steps of run {config.run_id}",
            found=f"steps up to {done} with batches of {_batches_in_words(known, done)}",
            expected=f"the same batches up to step {done}; the amended recipe has {_batches_in_words(config, done)}",
            remedy=f"start the amendment at step {done + 1} or later, with a margin for the steps until the job stops; "
            "past steps cannot change",
        )
    if config.audit_step <= done:
        raise RecipeError(
            f"amendments in training.changes make run {config.run_id} too short to prove that it can be resumed",
            found=f"{config.total_steps} steps, {done} of them taken",
            expected=f"the proof starts at step {config.audit_step}, which must not have been trained yet",
            remedy="amend at an earlier step",
        )


def record(config: RunConfig) -> None:
    """Log the amendment on the timeline, then write the amended configuration."""
    known, done = current(config), reached(config)
    Timeline(config.directory.events).append(
        "amended",
        step=done,
        batches=config.steps.through(config.total_steps),
        before=known.steps.through(known.total_steps) if known else [],
        total_steps=config.total_steps,
        reason="; ".join(amendment.reason for amendment in config.amendments),
        durable=True,
    )
    configuration.write(config)


def _batches_in_words(config: RunConfig, done: int) -> str:
    parts = [
        f"{batch}{'' if length == config.sequence_tokens else f' in rows of {length} tokens'} from step {first + 1}"
        for first, batch, length in config.steps.through(done)
    ]
    return ", ".join(parts) or "none"
