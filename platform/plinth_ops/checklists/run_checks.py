"""Checks of text, training and operation: objectives, error budgets, costs, alerts, runbooks, backups."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

import plinth
from plinth.errors import CheckFailedError, MissingError, RequestError
from plinth.training.forensics.order_proof import order_proof
from plinth.training.parameters.trainer import UNPROVED
from plinth.training.run_state import RunState, run_state
from plinth_ops.checklists.review import (
    Check,
    CheckAnswer,
    CheckScope,
    failed,
    not_applicable,
    passed,
    undetermined,
    warned,
)

#: Placeholders that are not a license.
_NO_LICENCE = ("noassertion", "none", "unknown", "other", "todo", "tbd")
#: Reserved domains without mailboxes (RFC 2606, RFC 6761).
_NOBODY = (".invalid", ".test")


def sources_owned(scope: CheckScope) -> CheckAnswer:
    """Check that every bucket has a reachable owner and that every source has a license."""
    if scope.recipe is None:
        return undetermined("no recipe was run in this workspace")
    buckets = scope.recipe.corpus.buckets
    found = [f"{name}: owner {one.owner}" for name, one in buckets.items() if one.owner.lower().endswith(_NOBODY)]
    found += [
        f"{name}/{index}: license {source.licence}"
        for name, bucket in buckets.items()
        for index, source in enumerate(bucket.sources)
        if source.licence.lower() in _NO_LICENCE
    ]
    owners = sorted({one.owner for one in buckets.values()})
    sources = sum(len(one.sources) for one in buckets.values())
    return failed("; ".join(found)) if found else passed(f"{sources} sources of {', '.join(owners)}")


def terms_allow(scope: CheckScope) -> CheckAnswer:
    """Check that the terms of every source allow training and the other uses that the recipe declares."""
    if scope.recipe is None:
        return undetermined("no recipe was run in this workspace")
    corpus = scope.recipe.corpus
    found = [
        f"{name}/{index}: {use} is not allowed"
        for name, bucket in corpus.buckets.items()
        for index, source in enumerate(bucket.sources)
        for use in ("train", *corpus.uses)
        if not getattr(source.terms, use)
    ]
    return failed("; ".join(found)) if found else passed(f"train{''.join(f', {use}' for use in corpus.uses)}")


def set_aside(scope: CheckScope) -> CheckAnswer:
    """Check that a held-out set is published and that training text was compared with it."""
    if scope.recipe is not None and scope.recipe.mixture is None:
        return not_applicable("the recipe does not train")
    absent = [asset for asset in ("holdout", "contamination") if scope.ctx.refs.ref(asset) is None]
    if absent:
        return failed(f"never materialized: {', '.join(absent)}")
    held = scope.ctx.refs.current("holdout").stats["held_out"]  # its rows are all documents, held out or not
    if not held:
        return failed("no document is held out")
    return passed(f"{held:,} documents are held out, and their overlap is measured")


def benchmarks_protected(scope: CheckScope) -> CheckAnswer:
    """Check that the recipe removes benchmark text from the training text."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("the workspace has no recipe that trains a model")
    sets = scope.recipe.corpus.protected.sets
    if not sets:
        return warned("corpus.protected.sets is empty: benchmark scores may reflect memorization")
    return passed(", ".join(sets))


WORDS = {RunState.FAILED: "failed", RunState.LOST: "is lost, because the job ended without a result"}


def resume_proved(scope: CheckScope) -> CheckAnswer:
    """Check that the last finished run has evidence that a resumed run equals the uninterrupted run."""
    ended = [config for config in scope.runs if config.directory.result.exists()]
    if not ended:
        return undetermined("this workspace has no finished run")
    config = ended[-1]
    path = config.directory.evidence
    if not path.exists():
        return failed(f"run {config.run_id} has no {path.name}")
    evidence = json.loads(path.read_bytes())
    if config.trainer is not None:
        return warned(f"run {config.run_id}: {UNPROVED}; {order_proof(evidence).in_words}")
    found = f"run {config.run_id}, steps {evidence['from_step']} to {evidence['to_step']}"
    if evidence["bit_exact"]:
        return passed(f"{found}: bit-identical")
    return warned(f"{found}: within a tolerance") if not config.deterministic else failed(f"{found}: different")


def saves_often_enough(scope: CheckScope) -> CheckAnswer:
    """Check that the checkpoint interval is near Daly's optimum for the recorded step times, stalls and failures."""
    from plinth.operation import forecast, spending

    config = scope.newest_run
    if config is None:
        return undetermined("the step time is unknown: this workspace has no run")
    runs, _ = forecast.known(scope.ctx.workspace)
    own = next((run for run in runs if run.run == config.run_id), None)
    if own is None or own.step_s is None:
        return undetermined(f"run {config.run_id} has too few steps to measure the step time")
    pauses = forecast.pauses(runs, own.device, forecast.work_of(config))
    between = spending.between_failures_s(config.ranks, pauses.failures_per_device_hour)
    best = spending.daly(pauses.stall_s, between)
    every = config.checkpoints.every_steps * own.step_s
    wasted = spending.waste(every, pauses.stall_s, pauses.restore_s, between)
    found = (
        f"checkpoint interval {config.checkpoints.every_steps} steps ({every:,.0f} s), optimum {best:,.0f} s; "
        f"{wasted:.2%} of the time is lost"
    )
    factor = scope.settings.interval_factor
    if best / factor <= every <= best * factor:
        return passed(found)
    least = spending.waste(best, pauses.stall_s, pauses.restore_s, between)
    return warned(found) if wasted < least + 0.02 else failed(f"{found}, {least:.2%} at the optimum")


def second_copy(scope: CheckScope) -> CheckAnswer:
    """Check that checkpoints are uploaded to a second location."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("the workspace has no recipe that trains a model")
    upload = scope.recipe.training.checkpoints.upload
    return passed(upload) if upload else warned("training.checkpoints.upload is not set: there is no second copy")


def retention_bounded(scope: CheckScope) -> CheckAnswer:
    """Check that old checkpoints are deleted and that at least the two newest are kept."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("the workspace has no recipe that trains a model")
    asked = scope.recipe.training.checkpoints
    found = f"keep_last {asked.keep_last}, keep_every {asked.keep_every}, keep_best {asked.keep_best}"
    return passed(found) if asked.keep_last >= 2 else failed(f"{found}: only the newest checkpoint is kept")


def watched(scope: CheckScope) -> CheckAnswer:
    """Check that the guard is on and that held-out text is evaluated during training."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("the workspace has no recipe that trains a model")
    training = scope.recipe.training
    if not training.guard.enabled:
        return failed("training.guard.enabled is false")
    if training.validation is None:
        return warned("the guard is on, but training.validation is not set: no held-out loss during training")
    return passed("guard and validation are on")


def restarts_bounded(scope: CheckScope) -> CheckAnswer:
    """Check that the last job of every run did not fail, was not lost, and is not silent."""
    if not scope.runs:
        return not_applicable("no run")
    bad = []
    for config in scope.runs:
        state, silent_s = run_state(config), scope.now - config.directory.events.stat().st_mtime
        if state.needs_attention:
            bad.append(f"{config.run_id} {WORDS[state]}")
        elif state in (RunState.RUNNING, RunState.UNKNOWN) and silent_s > config.supervision.hang_s:
            bad.append(f"{config.run_id}: no event for {silent_s:,.0f} s ({state})")
    return failed("; ".join(bad)) if bad else passed(f"{len(scope.runs)} runs")


def newest_checkpoint(scope: CheckScope) -> CheckAnswer:
    """Check that the newest checkpoint of the newest run matches its commit record."""
    from plinth.training.checkpoint import checkpoint
    from plinth.training.shared_run.shipping import is_shared

    config = scope.newest_run
    steps = checkpoint.committed(config.directory) if config else []
    if config is None or not steps:
        return not_applicable("there is no committed checkpoint")
    found = f"run {config.run_id}, step {steps[-1]} of {', '.join(map(str, steps))}"
    if checkpoint.stated_bytes(config.directory, steps[-1]) > READ_BYTES:
        return undetermined(f"{found}: too large for this check; run `plinth run checkpoint verify {config.run_id}`")
    intact = checkpoint.is_valid(config.directory, steps[-1])
    if not intact and is_shared(config.directory):  # other machines' files are in the bucket
        return undetermined(f"{found}: run `plinth run checkpoint verify {config.run_id}`")
    return passed(found) if intact else failed(f"{found}: differs from its commit record")


#: Checkpoints up to this size are verified; larger ones would take too long for a checklist.
READ_BYTES = 2 << 30


DAY_S: Final = 86400.0
#: Number of lines of `alerts.jsonl` to read.
NEWEST_ALERTS: Final = 1000
#: Pattern of a backup name: time and digest prefix.
NAMED_CHARACTERS: Final = 36


def objectives_set(scope: CheckScope) -> CheckAnswer:
    """Check that service level objectives are configured for this workspace."""
    from plinth_ops.service_levels import objectives

    path = scope.ctx.workspace.root / "objectives.yaml"
    try:
        wanted = objectives.load(scope.ctx.workspace)
    except RequestError as error:
        return failed(error.brief)
    if not path.exists():
        return failed(f"no {path.name}: no objectives are configured")
    return passed(f"goodput {wanted.goodput:.0%}, job success {wanted.job_success:.0%}, {wanted.window_days:g} days")


def error_budget_left(scope: CheckScope) -> CheckAnswer:
    """Check that no error budget of this workspace is exhausted."""
    from plinth_ops.service_levels import objectives
    from plinth_ops.service_levels.tallies import refuse_spent

    wanted = objectives.load(scope.ctx.workspace)
    found = objectives.measure(scope.ctx, wanted, scope.now)
    window = f"in {wanted.window_days:g} days, {objectives.source(scope.ctx.workspace)}"
    try:
        refuse_spent(found)
    except CheckFailedError:
        return failed(f"{'; '.join(one.words for one in found if one.is_spent)}; {window}")
    return passed(f"{'; '.join(one.words for one in found if one.total_s)}; {window}")


def money_limited(scope: CheckScope) -> CheckAnswer:
    """Check that a cost limit is set and that no cost limit is exhausted."""
    from plinth.operation import spending
    from plinth.operation.spending_ledger import Ledger

    settings = spending.load(scope.ctx.workspace)
    place = spending.ledger_place(scope.ctx.workspace, settings)
    if "://" not in place and not Path(place).exists():
        return failed("no budget ledger: the cost of runs is not limited")
    limits = Ledger(place).limits(scope.now)
    if not limits:
        return failed("no cost limit is set")
    spent = [one.text for one, counted in limits if one.amount is not None and counted >= one.amount]
    return failed(f"exhausted: {'; '.join(spent)}") if spent else passed("; ".join(one.text for one, _ in limits))


def alerts_sound(scope: CheckScope) -> CheckAnswer:
    """Check that every alert can fire in time under this workspace's objectives and that it has a runbook."""
    from plinth_ops.alerts import table
    from plinth_ops.service_levels import objectives

    folder = Path(plinth.__file__).resolve().parents[2] / "docs" / "runbooks"
    known = table.alerts(objectives.load(scope.ctx.workspace))
    if not folder.is_dir():
        return undetermined(f"{folder} does not exist: installed without documentation")
    found = table.problems(known, table.pages(folder))
    return failed("; ".join(found)) if found else passed(f"{len(known)} alerts, runbooks in {folder}")


def alerts_routed(scope: CheckScope) -> CheckAnswer:
    """Check that `alerting.yaml` has a receiver for pages and a receiver for unanswered pages."""
    from plinth_ops.alerts import prometheus

    try:
        routes = prometheus.routing(scope.ctx.workspace)
    except (MissingError, RequestError) as error:
        return failed(error.what)
    pages = sorted(owner for owner, ways in routes.owners.items() if ways.get("page"))
    if not (routes.default or pages):
        return failed(f"{prometheus.FILE} has no address to send pages to")
    found = f"pages for {', '.join(pages) or 'all owners'}{' and a default' if routes.default and pages else ''}"
    return passed(found) if routes.escalation else warned(f"{found}; unanswered pages are not escalated")


def backed_up(scope: CheckScope) -> CheckAnswer:
    """Check that the newest backup is complete and recent."""
    place, folder = scope.settings.backups, Path(scope.settings.backups)
    if not place:
        return undetermined("the location of the backups is unknown: `backups` in checklists.yaml is not set")
    newest = _newest_backup(place)
    if newest is None:
        return failed(f"no complete backup in {place}")
    name, at = newest
    hours = (scope.now - at) / 3600
    found = f"{name}: {hours:.1f} hours old"
    if hours > scope.settings.backup_hours:
        return failed(found)
    here = "://" not in place and folder.stat().st_dev == scope.ctx.workspace.root.stat().st_dev
    if here and not scope.ctx.workspace.uri:
        return warned(f"{found}, which is on the disk of the workspace itself")
    return passed(found)


def _newest_backup(place: str) -> tuple[str, float] | None:
    """Return the name and Unix time of the newest backup, or None if there is no complete backup.

    A backup by `plinth ops backup` is complete when its record is written, which is the last step. If another program
    writes the backups, the newest file in the folder is used.
    """
    from plinth_ops.backup.snapshot import BackupArchive

    folder = Path(place)
    if "://" in place or (folder / "objects").is_dir():
        archive = BackupArchive(place)
        try:
            name = archive.named()
        except MissingError:
            return None
        return name[:NAMED_CHARACTERS], datetime.fromisoformat(archive.read(name).at).timestamp()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return max(((str(path), path.stat().st_mtime) for path in files), key=lambda file: file[1], default=None)


def alerts_seen(scope: CheckScope) -> CheckAnswer:
    """Check that `alerts.jsonl` has no alarm from the last day."""
    path = scope.ctx.workspace.root / "alerts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[-NEWEST_ALERTS:] if path.exists() else []
    found = [json.loads(line) for line in lines]
    recent = [one for one in found if float(one["time"]) >= scope.now - DAY_S]
    if recent:
        return warned(
            f"{len(recent)} alarms in the last day; the newest alarm is from {recent[-1]['job']}: "
            f"{str(recent[-1]['message'])[:200]}"
        )
    return passed(f"no alarm in the last day; {len(lines)} earlier alarms")


CHECKS = (
    Check(
        "sources-owned", "every source has a license and a reachable owner", "data",
        ("preproduction", "readiness"), "set license and owner in corpus.buckets", sources_owned,
    ),
    Check(
        "terms", "the terms of every source allow the uses in the recipe", "data", ("preproduction",),
        "remove the source, or agree on other terms with its owner", terms_allow,
    ),
    Check(
        "held-out", "there is a held-out set, and training text was compared with it", "data",
        ("preproduction", "readiness"), "`plinth run --select contamination`", set_aside,
    ),
    Check(
        "benchmarks-protected", "benchmark text is removed from training text", "evaluation",
        ("preproduction",), "list benchmarks in corpus.protected.sets (docs/contamination.md)", benchmarks_protected,
    ),
    Check(
        "resume-proof", "a resumed run equals the uninterrupted run", "training", ("preproduction", "readiness"),
        "run `plinth run audit resume latest`", resume_proved,
    ),
    Check(
        "checkpoint-interval", "the checkpoint interval suits the failure rate and the save time", "training",
        ("preproduction",), "set training.checkpoints.every_steps to the optimum that `plinth run plan` prints",
        saves_often_enough,
    ),
    Check(
        "checkpoint-copy", "checkpoints are copied to a second location", "training", ("preproduction", "readiness"),
        "set training.checkpoints.upload", second_copy,
    ),
    Check(
        "retention", "old checkpoints are deleted, and at least two are kept", "training",
        ("preproduction", "readiness"), "set training.checkpoints.keep_last to 2 or more", retention_bounded,
    ),
    Check(
        "watched", "a diverging run is detected during training", "training", ("preproduction",),
        "set training.guard and training.validation", watched,
    ),
    Check(
        "jobs-ended", "no run is failed, lost or silent", "on-call", ("readiness", "incident"),
        "find the cause with `plinth run timeline RUN`; `plinth run job submit RUN` resumes the run, "
        "`plinth run job cancel RUN` ends it",
        restarts_bounded,
    ),
    Check(
        "newest-checkpoint", "the newest checkpoint matches its commit record", "on-call", ("readiness", "incident"),
        "the run resumes from the previous checkpoint; check the storage for failures", newest_checkpoint,
    ),
    Check(
        "objectives", "service level objectives are configured", "on-call", ("readiness",),
        "write objectives.yaml (docs/slis.md)", objectives_set,
    ),
    Check(
        "error-budget", "no error budget is exhausted", "on-call", ("readiness", "incident"),
        "find the causes with `plinth run goodput RUN`; fix them before a promotion", error_budget_left,
    ),
    Check(
        "money-limit", "a cost limit is set and not exhausted", "finance", ("preproduction", "readiness"),
        "set a limit, such as `plinth ops cost limit all 5000 --per month`", money_limited,
    ),
    Check(
        "alerts-sound", "every alert can fire within its response target and has a runbook", "on-call", ("readiness",),
        "change the objective or the alert (docs/alerts.md)", alerts_sound,
    ),
    Check(
        "alerts-routed", "pages have a receiver and an escalation", "on-call", ("readiness",),
        "write alerting.yaml (docs/alerts.md)", alerts_routed,
    ),
    Check(
        "backup", "a recent backup exists on another disk", "platform",
        ("preproduction", "readiness", "incident"),
        "set `backups` in checklists.yaml, and run `plinth ops backup to PLACE` daily", backed_up,
    ),
    Check(
        "alerts", "no alarm in the last day", "on-call", ("incident",), "read alerts.jsonl", alerts_seen,
    ),
)  # fmt: skip
