"""Review of a week or month, and its page: `reports/review-2026-W48.html`, `reports/review-2026-11.html`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation import spending
from plinth.operation.spending_ledger import MICROS, Ledger, Reservation
from plinth.provenance import lineage
from plinth.report.page import Fact, template
from plinth.storage.atomic import write_bytes
from plinth.text import counted
from plinth.training.telemetry.timeline import read_events
from plinth_jobs.instance import ALARMS
from plinth_ops.service_levels import objectives
from plinth_ops.service_levels.tallies import ErrorBudget

Length = Literal["week", "month"]


class Period(NamedTuple):
    """Period of a review. `begin` and `end` are Unix seconds; `end` is exclusive."""

    length: Length
    begin: float
    end: float

    @property
    def name(self) -> str:
        """Name of the period, such as `2026-W48` or `2026-11`."""
        begin = datetime.fromtimestamp(self.begin, UTC)
        year, week, _ = begin.isocalendar()
        return f"{year}-W{week:02d}" if self.length == "week" else f"{begin:%Y-%m}"

    def has(self, at: float) -> bool:
        """Return True if the period includes a time (Unix seconds)."""
        return self.begin <= at < self.end

    @property
    def before(self) -> Period:
        """Period of the same length that ends where this period begins."""
        return period(self.length, self.begin)


def period(length: Length, until: float) -> Period:
    """Return the last full week (Monday to Sunday) or the last full calendar month before a time, in UTC."""
    day = datetime.fromtimestamp(until, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if length == "week":
        end = day - timedelta(days=day.weekday())
        begin = end - timedelta(days=7)
    else:
        end = day.replace(day=1)
        begin = (end - timedelta(days=1)).replace(day=1)
    return Period(length, begin.timestamp(), end.timestamp())


@dataclass(frozen=True)
class PeriodSection:
    """Section of a review: a table with a verdict.

    Attributes:
        good: True if nothing needs attention; None if there is no data.
        verdict: one or two words.
        rows: all rows; the page has the first `ROWS` and counts the others.
        lead: description of the rows.
        numbers: indices of numeric columns.
    """

    title: str
    good: bool | None
    verdict: str
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    lead: str = ""
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class PeriodData:
    """Contents of the review page."""

    title: str
    subtitle: str
    facts: tuple[Fact, ...] = ()
    sections: tuple[PeriodSection, ...] = ()


def page(data: PeriodData) -> str:
    """Render the review as an HTML page. The same data gives the same bytes."""
    return template("page.html.j2", __package__).render(data=data, most=ROWS)


#: Maximum rows of a table; the rest is counted.
ROWS = 50


def when(at: float) -> str:
    """Format a time (Unix seconds) to the minute, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def first_line(said: object) -> str:
    """Return the first line of a reason, or `no reason given`."""
    lines = str(said or "").strip().splitlines()
    return lines[0] if lines else "no reason given"


#: Timeline events with the reason of a failure.
FAILURES = ("failed", "lost", "rank_failed", "hang", "device_error", "save_failed")


def failures(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on failed jobs and failure events in the period, oldest first."""
    found = sorted([*_failed_stages(ctx, span), *_failed_runs(ctx, span)])
    rows = [(when(at), *words) for at, *words in found]
    jobs = sum(row[2] in ("failed", "lost", "job") for row in rows)
    return PeriodSection(
        "Failed jobs", not jobs, f"{jobs} failed" if jobs else "none", ("when", "what", "event", "reason"), rows,
        lead="Failed pipeline jobs, and run events with the reasons of lost ranks.",
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


#: Maximum and minimum number of earlier periods for the cost comparison.
BEFORE, FEWEST = 8, 3

#: Threshold of an anomaly, in robust deviations from the median of earlier periods or similar jobs.
DEVIATIONS = 4.0


def cost(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on spending compared with earlier periods, and on jobs of unusual cost per token."""
    place = spending.ledger_place(ctx.workspace, spending.load(ctx.workspace))
    if "://" not in place and not Path(place).exists():
        return PeriodSection("Cost", None, "nothing was submitted")
    rows = Ledger(place).find(spending.workspace_name(ctx.workspace))
    spans = [span]
    for _ in range(BEFORE):
        spans.append(spans[-1].before)
    first = min((one.made for one in rows), default=span.end)
    totals = [_spent(rows, one) for one in spans if one.end > first]
    unusual = [*_unusual_total(totals), *_dear_jobs(rows, span)]
    lead = f"{totals[0] if totals else 0:,.2f} spent by jobs submitted in this {span.length}."
    verdict = f"{len(unusual)} unusual" if unusual else "as usual"
    return PeriodSection("Cost", not unusual, verdict, ("what", "cost", "usual", "times"), unusual, lead, (1, 2, 3))


def _spent(rows: Sequence[Reservation], span: Period) -> float:
    return sum(one.spent or 0 for one in rows if span.has(one.made)) / MICROS


def _unusual_total(totals: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """Yield a row for the total cost of the newest period if this cost is unusual."""
    if len(totals) > FEWEST and is_unusual(totals[0], totals[1:]):
        yield _compared("all jobs", totals[0], statistics.median(totals[1:]))


def _dear_jobs(rows: Sequence[Reservation], span: Period) -> Iterator[tuple[str, ...]]:
    """Yield a row for each job of this period whose cost per token is far above that of similar earlier jobs."""
    priced = [(one, one.spent / one.tokens) for one in rows if one.ended and one.spent and one.tokens]
    for one, price in priced:
        if span.has(one.made):
            alike = [other for row, other in priced if row.work == one.work and row.made < one.made]
            if len(alike) >= FEWEST and price > statistics.median(alike) and is_unusual(price, alike):
                usual = statistics.median(alike) * (one.tokens or 0) / MICROS
                yield _compared(one.run, (one.spent or 0) / MICROS, usual)


def is_unusual(value: float, others: Sequence[float]) -> bool:
    """Return True if a value is far from the median of other values.

    The difference must exceed `DEVIATIONS` scaled median deviations and half of the median.
    """
    median = statistics.median(others)
    deviation = 1.4826 * statistics.median(abs(other - median) for other in others)
    return abs(value - median) > max(DEVIATIONS * deviation, 0.5 * abs(median))


def _compared(what: str, cost: float, usual: float) -> tuple[str, ...]:
    return what, f"{cost:,.2f}", f"{usual:,.2f}", f"{cost / usual:.1f}" if usual else "–"


def levels(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on service level indicators, objectives and error budgets."""
    found: list[ErrorBudget] = objectives.measure(
        ctx, objectives.load(ctx.workspace), span.end, objectives.completeness(ctx)
    )
    rows = [
        (one.indicator, f"{one.value:.2%}", f"{one.target:.2%}", one.state.removesuffix(" spent"))
        for one in found
        if one.value is not None and one.spent is not None
    ]
    spent = [one.indicator for one in found if one.is_spent]
    verdict = f"{len(spent)} exhausted" if spent else "within budget" if rows else "nothing measured"
    return PeriodSection(
        "Service levels", not spent if rows else None, verdict,
        ("indicator", "good", "objective", "budget spent"), rows,
        lead=f"Values at the end of the {span.length}, over the window of the objectives.", numbers=(1, 2, 3),
    )  # fmt: skip


def provenance(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on provenance: the lineage of final published assets, and the audit log's
    verification."""
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
            proved = f". The audit log is verified; decisions in it: {releases.prove_log(ctx).entries}"
        except PlinthError as error:
            rows.append(("audit log", first_line(error)))
    rows = sorted(set(rows))
    whole = f"{len(ends)} of {len(ends)} complete" if ends else "nothing is published"
    verdict = f"{len(rows)} broken" if rows else whole
    walked = f"{links:,} manifests of {counted(len(ends), 'asset')}"
    lead = f"Manifests traced by digest, from final assets down to the sources: {walked}{proved}."
    return PeriodSection("Provenance", not rows if refs else None, verdict, ("asset", "first broken link"), rows, lead)


def suites(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on the results of data checks (suites) that Great Expectations stored."""
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
    return PeriodSection("Suites", not failed if ran else None, verdict, ("when", "suite", "expectation"), failed)


def releases(ctx: Context, span: Period) -> PeriodSection:
    """Return the review's section on release movements, such as promotions, and on blocked decisions."""
    if not _has_releases(ctx):
        return PeriodSection("Releases", None, "none")
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
    verdict = f"{len(back)} rolled back" if back else f"{moved} moved"
    return PeriodSection("Releases", not back, verdict, ("when", "version", "decision", "by", "reason"), sorted(rows))


def _has_releases(ctx: Context) -> bool:
    return ctx.workspace.releases.is_dir() and any(ctx.workspace.releases.iterdir())


def _minute(at: str) -> str:
    return when(_seconds(at))


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def write(ctx: Context, length: Length, until: float) -> Path:
    """Write the review of the last full week or month; return the path of its page.

    Raises:
        StorageError, DiskFullError: the page cannot be written.
    """
    span = period(length, until)
    target = ctx.workspace.reports / f"review-{span.name}.html"
    write_bytes(target, page(review(ctx, span)).encode())
    return target


def review(ctx: Context, span: Period) -> PeriodData:
    """Return the contents of the review page."""
    parts: tuple[tuple[str, Callable[[Context, Period], PeriodSection]], ...] = (
        ("Failed jobs", failures),
        ("Cost", cost),
        ("Service levels", levels),
        ("Provenance", provenance),
        ("Suites", suites),
        ("Releases", releases),
    )
    sections = tuple(_read(title, part, ctx, span) for title, part in parts)
    first, last = (datetime.fromtimestamp(at, UTC) for at in (span.begin, span.end - 1))
    return PeriodData(
        title=f"Review of {span.length} {span.name}",
        subtitle=f"{first:%d %B %Y} to {last:%d %B %Y}, UTC. {ctx.workspace.root.name}.",
        facts=tuple(Fact(label=one.title.lower(), value=one.verdict) for one in sections),
        sections=sections,
    )


def _read(title: str, part: Callable[[Context, Period], PeriodSection], ctx: Context, span: Period) -> PeriodSection:
    try:
        return part(ctx, span)
    except (PlinthError, OSError, ValueError, KeyError) as error:
        return PeriodSection(title, False, "could not be read", lead=" ".join(str(error).split()))
