"""Failed jobs of the pipeline, and events of runs that say why ranks were lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

from plinth.compute.context import Context
from plinth.operation.metrics.workspace import ALARMS
from plinth.report.period_page import PeriodSection
from plinth.training.telemetry.timeline import read_events
from plinth_jobs.reviews.period import Period
from plinth_jobs.reviews.section import first_line, section, when

#: Events of a timeline that say why a run failed.
FAILURES = ("failed", "lost", "rank_failed", "hang", "device_error", "save_failed")


def failures(ctx: Context, span: Period) -> PeriodSection:
    """Every failure of the period, oldest first."""
    found = sorted([*_failed_stages(ctx, span), *_failed_runs(ctx, span)])
    rows = [(when(at), *words) for at, *words in found]
    jobs = sum(row[2] in ("failed", "lost", "job") for row in rows)
    return section(
        "Failed jobs", not jobs, f"{jobs} failed" if jobs else "none", ("when", "what", "event", "reason"), rows,
        lead="Jobs of the pipeline, and events of runs that say why ranks were lost.",
    )  # fmt: skip


def _failed_stages(ctx: Context, span: Period) -> Iterator[tuple[float, str, str, str]]:
    path = ctx.workspace.root / ALARMS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        said = json.loads(line)
        if span.has(float(said["time"])):
            yield float(said["time"]), str(said["job"]), "job", first_line(said["message"])


def _failed_runs(ctx: Context, span: Period) -> Iterator[tuple[float, str, str, str]]:
    for path in sorted(ctx.workspace.runs.glob("*/events.jsonl")):
        if path.stat().st_mtime < span.begin:
            continue
        for event in read_events(path):
            if event["event"] in FAILURES and span.has(float(event["time"])):
                why = event.get("reason") or event.get("what") or event.get("kind") or ""
                yield float(event["time"]), path.parent.name, str(event["event"]), first_line(why)
