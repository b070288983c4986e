"""Service levels, provenance, suites and releases of a period: whether everything was in order and can be proved."""

from __future__ import annotations

import json
from datetime import datetime

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation import objectives
from plinth.operation.indicators import ErrorBudget
from plinth.provenance import lineage
from plinth.report.period_page import PeriodSection
from plinth.text.plural import counted
from plinth_jobs.reviews.period import Period
from plinth_jobs.reviews.section import first_line, section, when


def levels(ctx: Context, span: Period) -> PeriodSection:
    """Indicators against their objectives, and what is spent of the error budgets."""
    from plinth_registry import service_levels

    found: list[ErrorBudget] = service_levels.measure(ctx, objectives.load(ctx.workspace), span.end)
    rows = [
        (one.indicator, f"{one.value:.2%}", f"{one.target:.2%}", one.state.removesuffix(" spent"))
        for one in found
        if one.value is not None and one.spent is not None
    ]
    spent = [one.indicator for one in found if one.is_spent]
    verdict = f"{len(spent)} spent" if spent else "within budget" if rows else "nothing measured"
    return section(
        "Service levels", not spent if rows else None, verdict,
        ("indicator", "good", "objective", "budget spent"), rows,
        lead=f"At the end of the {span.length}, over the window of the objectives.", numbers=(1, 2, 3),
    )  # fmt: skip


def provenance(ctx: Context, span: Period) -> PeriodSection:
    """Every published asset that no other is made of, walked down to its sources; the log of decisions, proved."""
    refs = {ref.digest: ref.asset for ref in ctx.refs.all()}
    used, rows, links = set[str](), list[tuple[str, ...]](), 0
    for digest, asset in refs.items():
        try:
            used |= set(ctx.refs.load(digest).inputs.values())
        except PlinthError as error:
            rows.append((asset, first_line(error)))
    ends = {digest: asset for digest, asset in refs.items() if digest not in used}
    for digest, asset in ends.items():
        try:
            links += len(lineage.walk(ctx, digest).links)
        except PlinthError as error:
            rows.append((asset, first_line(error)))
    proved = ""
    if _has_releases(ctx):
        from plinth_registry import releases

        try:
            proved = f"; log of {releases.prove_log(ctx).entries} decisions proved"
        except PlinthError as error:
            rows.append(("log of decisions", first_line(error)))
    rows = sorted(set(rows))
    whole = f"{len(ends)} of {len(ends)} hold" if ends else "nothing is published"
    verdict = f"{len(rows)} broken" if rows else whole
    walked = f"{counted(links, 'manifest')} from {counted(len(ends), 'end')}"
    lead = f"{walked} of the pipeline down to their sources, by digest{proved}."
    return section("Provenance", not rows if refs else None, verdict, ("asset", "first broken link"), rows, lead)


def suites(ctx: Context, span: Period) -> PeriodSection:
    """Results of checks that Great Expectations has kept."""
    folder = ctx.workspace.root / "gx" / "gx" / "uncommitted" / "validations"
    passed, failed = 0, list[tuple[str, ...]]()
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else ():
        at = path.stat().st_mtime
        if not span.has(at):
            continue
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["success"]:
            passed += 1
        else:
            wrong = [one["expectation_config"]["type"] for one in said["results"] if not one["success"]]
            failed.append((when(at), str(said.get("suite_name", path.parts[-4])), ", ".join(wrong)))
    ran = passed + len(failed)
    verdict = f"{len(failed)} of {ran} failed" if failed else f"{ran} passed" if ran else "none ran"
    return section("Suites", not failed if ran else None, verdict, ("when", "suite", "expectation"), failed)


def releases(ctx: Context, span: Period) -> PeriodSection:
    """Movements, and decisions that were refused."""
    if not _has_releases(ctx):
        return section("Releases", None, "none", (), ())
    from plinth_registry import audit_log
    from plinth_registry.releases import history

    rows: list[tuple[str, ...]] = [
        (_minute(one.at), f"{one.model} {one.version or one.previous}", one.action, one.by, first_line(one.reason))
        for one in history(ctx, expired=True)
        if span.has(_seconds(one.at))
    ]
    moved = len(rows)
    rows += [
        (_minute(one.at), one.subject, f"{one.action} refused", one.by, first_line(one.refusal))
        for one in audit_log.entries(ctx)
        if one.outcome == "refused" and span.has(_seconds(one.at))
    ]
    back = [row for row in rows if row[2] in ("rollback", "returned", "withdrawn")]
    verdict = f"{len(back)} given back" if back else f"{moved} moved"
    return section("Releases", not back, verdict, ("when", "version", "decision", "by", "reason"), sorted(rows))


def _has_releases(ctx: Context) -> bool:
    return ctx.workspace.releases.is_dir() and any(ctx.workspace.releases.iterdir())


def _minute(at: str) -> str:
    return when(_seconds(at))


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
