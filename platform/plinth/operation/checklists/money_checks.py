"""Lines about promises: objectives, error budgets, money, alerts, runbooks, backups."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

import plinth
from plinth.errors import CheckFailedError, MissingError, RequestError
from plinth.operation.checklists.check import Check, CheckAnswer, failed, passed, undetermined, warned
from plinth.operation.checklists.scope import CheckScope

DAY_S: Final = 86400.0
#: Lines of `alerts.jsonl` that are read.
NEWEST_ALERTS: Final = 1000
#: Of a backup's name: its time and the beginning of its digest.
NAMED_CHARACTERS: Final = 36


def objectives_set(scope: CheckScope) -> CheckAnswer:
    """Somebody has chosen the objectives of this workspace."""
    from plinth.operation import objectives

    path = scope.ctx.workspace.root / "objectives.yaml"
    try:
        wanted = objectives.load(scope.ctx.workspace)
    except RequestError as error:
        return failed(error.brief)
    if not path.exists():
        return failed(f"no {path.name}: the defaults are nobody's promise")
    return passed(f"goodput {wanted.goodput:.0%}, job success {wanted.job_success:.0%}, {wanted.window_days:g} days")


def error_budget_left(scope: CheckScope) -> CheckAnswer:
    """No error budget is spent."""
    from plinth.operation import indicators, objectives

    wanted = objectives.load(scope.ctx.workspace)
    found = objectives.measure(scope.ctx, wanted, scope.now)
    window = f"in {wanted.window_days:g} days, {objectives.source(scope.ctx.workspace)}"
    try:
        indicators.refuse_spent(found)
    except CheckFailedError:
        return failed(f"{'; '.join(one.words for one in found if one.is_spent)}; {window}")
    return passed(f"{'; '.join(one.words for one in found if one.total_s)}; {window}")


def money_limited(scope: CheckScope) -> CheckAnswer:
    """A limit holds for what runs may cost, and some of it is left."""
    from plinth.operation.spending import parameters
    from plinth.operation.spending.ledger import Ledger

    settings = parameters.load(scope.ctx.workspace)
    place = parameters.ledger_place(scope.ctx.workspace, settings)
    if "://" not in place and not Path(place).exists():
        return failed("no ledger of budgets: nothing limits what a run may cost")
    limits = Ledger(place).limits(scope.now)
    if not limits:
        return failed("no limit is set")
    spent = [one.text for one, counted in limits if one.amount is not None and counted >= one.amount]
    return failed(f"used up: {'; '.join(spent)}") if spent else passed("; ".join(one.text for one, _ in limits))


def alerts_sound(scope: CheckScope) -> CheckAnswer:
    """Every alert can fire under the objectives of this workspace, in its promised time, and has a runbook."""
    from plinth.operation import objectives
    from plinth.operation.alerts import alert, table

    folder = Path(plinth.__file__).resolve().parents[2] / "docs" / "runbooks"
    known = table.alerts(objectives.load(scope.ctx.workspace))
    if not folder.is_dir():
        return undetermined(f"no {folder}: installed without its documents")
    found = alert.problems(known, alert.pages(folder))
    return failed("; ".join(found)) if found else passed(f"{len(known)} alerts, runbooks in {folder}")


def alerts_routed(scope: CheckScope) -> CheckAnswer:
    """Somebody is paged, and somebody else where nobody answers."""
    from plinth.operation.alerts import alertmanager

    try:
        routes = alertmanager.routing(scope.ctx.workspace)
    except (MissingError, RequestError) as error:
        return failed(error.what)
    pages = sorted(owner for owner, ways in routes.owners.items() if ways.get("page"))
    if not (routes.default or pages):
        return failed(f"{alertmanager.FILE} names no address of a page")
    found = f"pages of {', '.join(pages) or 'all'}{' and a default' if routes.default and pages else ''}"
    return passed(found) if routes.escalation else warned(f"{found}; no escalation where nobody answers")


def backed_up(scope: CheckScope) -> CheckAnswer:
    """The newest backup is whole and fresh."""
    place, folder = scope.settings.backups, Path(scope.settings.backups)
    if not place:
        return undetermined("`backups` of checklists.yaml names no place: nobody has said where they lie")
    newest = _newest_backup(place)
    if newest is None:
        return failed(f"no whole one in {place}")
    name, at = newest
    hours = (scope.now - at) / 3600
    found = f"{name}: {hours:.1f} hours old"
    if hours > scope.settings.backup_hours:
        return failed(found)
    here = "://" not in place and folder.stat().st_dev == scope.ctx.workspace.root.stat().st_dev
    if here and not scope.ctx.workspace.uri:
        return warned(f"{found}, on the disk of the workspace itself")
    return passed(found)


def _newest_backup(place: str) -> tuple[str, float] | None:
    """Name and Unix time of the newest backup, None without one: a record of `plinth ops backup`, which is written
    last, so that content of one that was killed counts for nothing; in a folder of another program, its newest file."""
    from plinth.operation.backup.snapshot import BackupArchive

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
    """Nothing has alarmed within a day."""
    path = scope.ctx.workspace.root / "alerts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[-NEWEST_ALERTS:] if path.exists() else []
    found = [json.loads(line) for line in lines]
    recent = [one for one in found if float(one["time"]) >= scope.now - DAY_S]
    if recent:
        return warned(
            f"{len(recent)} within a day, the last of {recent[-1]['job']}: {str(recent[-1]['message'])[:200]}"
        )
    return passed(f"none within a day; {len(lines)} before")


CHECKS = (
    Check(
        "objectives", "service objectives are chosen", "on-call", ("readiness",),
        "write objectives.yaml (docs/slis.md)", objectives_set,
    ),
    Check(
        "error-budget", "no error budget is spent", "on-call", ("readiness", "incident"),
        "`plinth run goodput RUN` names the causes; mend them before anything is promoted", error_budget_left,
    ),
    Check(
        "money-limit", "a limit holds for what runs may cost", "finance", ("preproduction", "readiness"),
        "`plinth ops cost limit all 5000 --per month`", money_limited,
    ),
    Check(
        "alerts-sound", "every alert can fire in its time, and has a runbook", "on-call", ("readiness",),
        "change the objective or the alert (docs/alerts.md)", alerts_sound,
    ),
    Check(
        "alerts-routed", "somebody is paged, and somebody else where nobody answers", "on-call", ("readiness",),
        "write alerting.yaml (docs/alerts.md)", alerts_routed,
    ),
    Check(
        "backup", "what cannot be made again has a fresh backup elsewhere", "platform",
        ("preproduction", "readiness", "incident"),
        "name the place in checklists.yaml (`backups`), and run `plinth ops backup to PLACE` every day", backed_up,
    ),
    Check(
        "alerts", "nothing has alarmed within a day", "on-call", ("incident",), "read alerts.jsonl", alerts_seen,
    ),
)  # fmt: skip
