"""All parts of a week or month, and its page: `reports/review-2026-W48.html`, `reports/review-2026-11.html`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.report.data import Fact
from plinth.storage.atomic import write_bytes
from plinth_ops.reviews.page import Length, Period, PeriodData, PeriodSection, page, period
from plinth_ops.reviews.parts import cost, failures, levels, provenance, releases, suites


def write(ctx: Context, length: Length, until: float) -> Path:
    """Write the page of the last whole period. Returns its path.

    Raises:
        StorageError, DiskFullError: it could not be written.
    """
    span = period(length, until)
    target = ctx.workspace.reports / f"review-{span.name}.html"
    write_bytes(target, page(review(ctx, span)).encode())
    return target


def review(ctx: Context, span: Period) -> PeriodData:
    """The contents of the page."""
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
        return PeriodSection(title=title, good=False, verdict="could not be read", lead=" ".join(str(error).split()))
