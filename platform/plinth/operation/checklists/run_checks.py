"""Lines about training: a run can be resumed, saves often enough, is watched, and its state has a second copy."""

from __future__ import annotations

import json

from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed, undetermined, warned
from plinth.operation.checklists.scope import CheckScope
from plinth.training.run_state import RunState, run_state

WORDS = {RunState.FAILED: "failed", RunState.LOST: "was lost: its job is gone and left no result"}


def resume_proved(scope: CheckScope) -> CheckAnswer:
    """The newest run that ended has evidence that a resumed run equals the uninterrupted one."""
    ended = [config for config in scope.runs if config.directory.result.exists()]
    if not ended:
        return undetermined("no run has ended in this workspace")
    config = ended[-1]
    path = config.directory.evidence
    if not path.exists():
        return failed(f"run {config.run_id} has no {path.name}")
    evidence = json.loads(path.read_bytes())
    found = f"run {config.run_id}, steps {evidence['from_step']} to {evidence['to_step']}"
    if evidence["bit_exact"]:
        return passed(f"{found}: bit for bit")
    return warned(f"{found}: within a tolerance") if not config.deterministic else failed(f"{found}: not equal")


def saves_often_enough(scope: CheckScope) -> CheckAnswer:
    """The interval of saves is near Daly's, from recorded steps, stalls and failures."""
    from plinth.operation.planning import forecast, interval, recorded

    config = scope.newest_run
    if config is None:
        return undetermined("no run is recorded: the time of a step is not known")
    runs, _ = recorded.known(scope.ctx.workspace)
    own = next((run for run in runs if run.run == config.run_id), None)
    if own is None or own.step_s is None:
        return undetermined(f"run {config.run_id} has taken too few steps to be timed")
    pauses = recorded.pauses(runs, own.device, forecast.work_of(config))
    between = interval.between_failures_s(config.ranks, pauses.failures_per_device_hour)
    best = interval.daly(pauses.stall_s, between)
    every = config.checkpoints.every_steps * own.step_s
    wasted = interval.waste(every, pauses.stall_s, pauses.restore_s, between)
    found = f"{config.checkpoints.every_steps} steps are {every:,.0f} s, best {best:,.0f} s; {wasted:.2%} is lost"
    factor = scope.settings.interval_factor
    if best / factor <= every <= best * factor:
        return passed(found)
    least = interval.waste(best, pauses.stall_s, pauses.restore_s, between)
    return warned(found) if wasted < least + 0.02 else failed(f"{found}, {least:.2%} at best")


def second_copy(scope: CheckScope) -> CheckAnswer:
    """Checkpoints are uploaded to another place than the run's folder."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("no recipe that trains")
    upload = scope.recipe.training.checkpoints.upload
    return passed(upload) if upload else warned("training.checkpoints.upload names none: one disk holds all")


def retention_bounded(scope: CheckScope) -> CheckAnswer:
    """Old checkpoints are removed, and one that turns out bad has one before it."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("no recipe that trains")
    asked = scope.recipe.training.checkpoints
    found = f"keep_last {asked.keep_last}, keep_every {asked.keep_every}, keep_best {asked.keep_best}"
    return passed(found) if asked.keep_last >= 2 else failed(f"{found}: a bad newest checkpoint has none before it")


def watched(scope: CheckScope) -> CheckAnswer:
    """The guard is on, held-out text is evaluated while training."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("no recipe that trains")
    training = scope.recipe.training
    if not training.guard.enabled:
        return failed("training.guard.enabled is false")
    if training.validation is None:
        return warned("the guard is on; training.validation is left out, so no held-out loss is seen before the end")
    return passed("guard and validation are on")


def restarts_bounded(scope: CheckScope) -> CheckAnswer:
    """Fail if the last job of a run failed, was lost, or is silent."""
    if not scope.runs:
        return not_applicable("no run")
    bad = []
    for config in scope.runs:
        state, silent_s = run_state(config), scope.now - config.directory.events.stat().st_mtime
        if state.needs_attention:
            bad.append(f"{config.run_id} {WORDS[state]}")
        elif state in (RunState.RUNNING, RunState.UNKNOWN) and silent_s > config.supervision.hang_s:
            bad.append(f"{config.run_id} has written no event for {silent_s:,.0f} s ({state})")
    return failed("; ".join(bad)) if bad else passed(f"{len(scope.runs)} runs")


def newest_checkpoint(scope: CheckScope) -> CheckAnswer:
    """The newest checkpoint of the newest run is what was committed."""
    from plinth.training.checkpoint import checkpoint

    config = scope.newest_run
    steps = checkpoint.committed(config.directory) if config else []
    if config is None or not steps:
        return not_applicable("no committed checkpoint")
    found = f"run {config.run_id}, step {steps[-1]} of {', '.join(map(str, steps))}"
    if checkpoint.stated_bytes(config.directory, steps[-1]) > READ_BYTES:
        return undetermined(f"{found}: too large to read here; `plinth run checkpoint verify {config.run_id}`")
    return passed(found) if checkpoint.is_valid(config.directory, steps[-1]) else failed(f"{found}: not as committed")


#: A checkpoint up to this is read whole; larger ones take longer than a checklist may.
READ_BYTES = 2 << 30

CHECKS = (
    Check(
        "resume-proof", "a resumed run equals the uninterrupted one", "training", ("preproduction", "readiness"),
        "`plinth run audit resume latest`", resume_proved,
    ),
    Check(
        "checkpoint-interval", "saves are about as frequent as failures and their stall ask for", "training",
        ("preproduction",), "set training.checkpoints.every_steps; `plinth run plan` prints the best",
        saves_often_enough,
    ),
    Check(
        "checkpoint-copy", "checkpoints have a second copy elsewhere", "training", ("preproduction", "readiness"),
        "set training.checkpoints.upload", second_copy,
    ),
    Check(
        "retention", "old checkpoints go, and the newest has one before it", "training",
        ("preproduction", "readiness"), "set training.checkpoints.keep_last to 2 or more", retention_bounded,
    ),
    Check(
        "watched", "a run that goes wrong is noticed while it trains", "training", ("preproduction",),
        "set training.guard and training.validation", watched,
    ),
    Check(
        "jobs-ended", "no run is left failed, lost or silent", "on-call", ("readiness", "incident"),
        "`plinth run timeline RUN` shows why; `plinth run job submit RUN` resumes it, `plinth run job cancel RUN` "
        "gives it up",
        restarts_bounded,
    ),
    Check(
        "newest-checkpoint", "the newest checkpoint is what was committed", "on-call", ("readiness", "incident"),
        "the one before it is used; look for failing storage", newest_checkpoint,
    ),
)  # fmt: skip
