"""Pages beside the index, by kind, newest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

from plinth.compute.context import Context
from plinth.report.workspace_index import PageGroup, PageLine
from plinth_assets.framework.expectations import docs_index
from plinth_jobs.results.page import INDEX
from plinth_jobs.results.subject import FILE as RESULTS

#: Kinds of pages: name, pattern of the file's name, and the command that writes one. What fits none is listed last.
KINDS: tuple[tuple[str, str, str], ...] = (
    ("Results", RESULTS.pattern, "plinth report"),
    ("Evaluation", r".+-evaluation\.html", "plinth run --select evaluation_page"),
    ("Comparisons", r"comparison-.+\.html|.+-comparison\.html", "plinth model compare A B"),
    ("Canary", r".+-canary-\d+(-champion-\d+)?\.html", "plinth release canary"),
    ("Experiments", r"experiment-.+\.html", "plinth experiment run FILE"),
    ("Reviews", r"review-\d{4}-W?\d\d\.html", "plinth ops retrospective"),
    ("Incidents", r"incident-\d+\.html", "plinth ops incident show --page"),
    ("Game days", r"gameday-.+\.html", "plinth ops gameday NAME"),
    ("Impact", r"impact-.+\.html", "plinth release impact DIGEST"),
    ("Runs", "", "plinth run timeline latest"),
)
OTHER = "Other pages"
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def groups(ctx: Context) -> Iterator[PageGroup]:
    """Pages beside the index by kind, newest first; pages of runs are linked from their lines too."""
    by_kind: dict[str, list[tuple[tuple[int, float], PageLine]]] = {}
    for path in sorted(ctx.workspace.reports.glob("*.html")):
        if path.name != INDEX:
            line = PageLine(title=_title(path), href=path.name, written=utc(path.stat().st_mtime))
            by_kind.setdefault(_kind(ctx, path), []).append((_order(path), line))
    docs = docs_index(ctx.workspace)
    if docs.exists():
        href = Path("..", docs.relative_to(ctx.workspace.root)).as_posix()
        line = PageLine(title="Every check of every stage (Data Docs)", href=href, written=utc(docs.stat().st_mtime))
        by_kind.setdefault("Results", []).append(((1, 0.0), line))
    for name, _, command in (*KINDS, (OTHER, "", "")):
        pages = tuple(line for _, line in sorted(by_kind.get(name, ()), key=lambda each: each[0]))
        if pages or command:
            yield PageGroup(name=name, command=command, pages=pages)


def _kind(ctx: Context, path: Path) -> str:
    if (ctx.workspace.runs / path.stem / "config.json").exists():
        return "Runs"
    return next((name for name, pattern, _ in KINDS if re.fullmatch(pattern, path.name)), OTHER)


def _order(path: Path) -> tuple[int, float]:
    """Newest first: candidates by their number, for a page is written again when its release state changes."""
    found = RESULTS.fullmatch(path.name)
    return -int(found["version"] or 0) if found else 0, -path.stat().st_mtime


def _title(path: Path) -> str:
    """The page's own title; the file's name where it has none."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        found = _TITLE.search(stream.read(4096))
    return unescape(found[1].strip()) if found else path.name


def utc(seconds: float) -> str:
    """Unix seconds as people write them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
