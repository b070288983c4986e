"""Index of a workspace's pages, `reports/index.html`, and the server of the pages.

The index shows the current state on one screen (tiles of `index_tiles`), the runs, and links to every page. The pages
load nothing from the network and their links are relative, so the folder can be opened, copied or served without
changes.
"""

from __future__ import annotations

import mimetypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from html import unescape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.report.page import IndexData, PageGroup, PageLine, RunLine, ServerLink, Standing, index_page
from plinth.storage import running
from plinth.storage.atomic import write_bytes
from plinth.storage.uris import open_unlinked
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.run_state import RunState, RunWatch, run_state
from plinth.training.telemetry import timeline
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.timeline import read_events
from plinth_assets.framework import docs_index
from plinth_jobs import index_tiles, results
from plinth_jobs.index_tiles import page_link
from plinth_jobs.recipes import load, recall
from plinth_jobs.results import FILE as RESULTS
from plinth_jobs.results import INDEX
from plinth_registry.mlflow.server import MODELS, find_server

#: Page kinds, each with name, file name pattern and command. Other pages are listed last.
KINDS: tuple[tuple[str, str, str], ...] = (
    ("Results", RESULTS.pattern, "plinth report"),
    ("Evaluation", r".+-evaluation\.html", "plinth run --select evaluation_page"),
    ("Comparisons", r"comparison-.+\.html|.+-comparison\.html", "plinth model compare A B"),
    ("Canary", r".+-canary-\d+(-champion-\d+)?\.html", "plinth release canary"),
    ("Experiments", r"(experiment|loop)-.+\.html", "plinth experiment run FILE"),
    ("Reviews", r"review-\d{4}-W?\d\d\.html", "plinth ops retrospective"),
    ("Incidents", r"incident-\d+\.html", "plinth ops incident show --page"),
    ("Game days", r"gameday-.+\.html", "plinth ops gameday NAME"),
    ("Qualifications", r"qualification-.+\.html", "plinth qualify"),
    ("Impact", r"impact-.+\.html", "plinth release impact DIGEST"),
    ("Runs", "", "plinth run timeline latest"),
)
OTHER = "Other pages"
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
#: Descriptions of run states.
WORDS = {RunState.LOST: "lost (its job is gone)", RunState.UNKNOWN: "unknown (scheduler not reachable)"}
STANDINGS: dict[RunState, Standing] = {
    RunState.PREPARED: "none",
    RunState.QUEUED: "good",
    RunState.RUNNING: "good",
    RunState.FINISHED: "good",
    RunState.STOPPED: "attention",
    RunState.FAILED: "bad",
    RunState.LOST: "bad",
    RunState.UNKNOWN: "unknown",
}
#: Maximum number of runs listed, newest first. The timeline of each listed run is read.
RUNS_SHOWN = 20
#: Workspace paths whose content the index shows, in addition to runs.
WATCHED = ("reports/*.html", "releases/*", "taint/*", "incidents/*", "gamedays/*", "refs/**/*.json", "*.jsonl")


def path(workspace: Workspace) -> Path:
    """Return the path of the index page of a workspace."""
    return workspace.reports / INDEX


def write(ctx: Context, recipe: Recipe | None, watch: RunWatch | None = None) -> Path:
    """Write the index page of the workspace, and return its path.

    Args:
        watch: state of the runs from an earlier check.

    Raises:
        StorageError, DiskFullError: the index could not be written.
    """
    runs = (watch or RunWatch(ctx.workspace.runs)).look().newest()
    data = IndexData(
        title=_recipe_title(recipe),
        workspace=ctx.workspace.root.name,
        servers=tuple(_servers(ctx)),
        recipe=recipe.name if recipe else "",
        written=utc(time.time()),
        tiles=tuple(index_tiles.tiles(ctx, recipe)),
        runs=tuple(run_line(ctx, ctx.workspace.runs / run / "config.json") for run in runs[:RUNS_SHOWN]),
        older_runs=max(0, len(runs) - RUNS_SHOWN),
        groups=tuple(groups(ctx)),
    )
    write_bytes(path(ctx.workspace), index_page(data).encode())
    return path(ctx.workspace)


def _recipe_title(recipe: Recipe | None) -> str:
    """Return the recipe's name and, if it differs, the name of its release."""
    if recipe is None:
        return "Plinth workspace"
    named = recipe.release is not None and recipe.release.name != recipe.name
    return f"{recipe.name}, release {recipe.required_release().name}" if named else recipe.name


def _servers(ctx: Context) -> Iterator[ServerLink]:
    """Yield links to the corpus page, Dagster and MLflow while `plinth up` serves them."""
    served, mlflow = running.known(ctx.workspace), find_server(ctx.workspace)
    if served is not None:
        if served.corpus:
            yield ServerLink(name="Corpus", url=served.corpus)
        yield ServerLink(name="Dagster", url=served.dagster)
        if mlflow is not None:
            yield ServerLink(name="MLflow", url=f"{mlflow.uri.rstrip('/')}{MODELS}")


def refresh(workspace: Workspace, warn: Callable[[str], object], watch: RunWatch | None = None) -> None:
    """Rewrite the pages of candidates with a changed release state, and the index for the recipe last run in the
    workspace. Failures become warnings."""
    try:
        recipe = load(recall(workspace.root))
    except PlinthError:
        recipe = None
    ctx = Context(workspace)
    try:
        if recipe is not None:
            results.renew(ctx, recipe)
        write(ctx, recipe, watch)
    except PlinthError as error:
        warn(f"the index of pages was not written: {error}")


def seen(workspace: Workspace, watch: RunWatch) -> str:
    """Return a digest of the pages' file names, sizes and times. If the digest changes, the index must be rewritten.

    Args:
        watch: state of the runs from an earlier check. Finished runs are not read again.
    """
    facts, open_runs = watch.look().facts(), watch.open_runs()
    found: list[list[object]] = [["runs", *facts], ["states", *run_states(Context(workspace), open_runs)]]
    for pattern in WATCHED:
        for watched in workspace.root.glob(pattern):
            if watched != path(workspace) and (stat := stat_of(watched)):
                found.append([str(watched), stat.st_size, stat.st_mtime_ns])
    return fingerprint.digest(sorted(found, key=lambda one: str(one[0])))


def groups(ctx: Context) -> Iterator[PageGroup]:
    """Yield the pages next to the index by kind, newest first. The line of a run links to the page of the run."""
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
    """Return the sort key of a page. Pages are sorted newest first, but pages of candidates by version, because they
    are rewritten."""
    found = RESULTS.fullmatch(path.name)
    return -int(found["version"] or 0) if found else 0, -path.stat().st_mtime


def _title(path: Path) -> str:
    """Return the title of an HTML page, or its file name if it has no title."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        found = _TITLE.search(stream.read(4096))
    return unescape(found[1].strip()) if found else path.name


def utc(seconds: float) -> str:
    """Format Unix seconds as a date and a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def run_states(ctx: Context, runs: Iterable[str]) -> list[tuple[str, str]]:
    """Return the name and state of each unfinished run. The state must be checked, because a killed job changes no
    file."""
    found = []
    for run in runs:
        with suppress(PlinthError):
            found.append((run, str(run_state(configuration.load(ctx.workspace.runs / run / "config.json")))))
    return found


def stat_of(path: Path) -> os.stat_result | None:
    """Return the size and times of a file, or None if the file no longer exists."""
    try:
        return path.stat()
    except OSError:
        return None


def run_line(ctx: Context, path: Path) -> RunLine:
    """Return the index line of a run. If its configuration or timeline cannot be read, the line shows the error."""
    name = path.parent.name
    try:
        config = configuration.load(path)
        events = list(read_events(config.directory.events))
        state = run_state(config)
        share = account(events, config.ranks).goodput
    except PlinthError as error:
        return RunLine(run=name, state=error.what, standing="unknown", steps=0, total_steps=0)
    steps = [event for event in events if event["event"] == "step"]
    last = max(steps, key=lambda event: int(event["step"]), default=None)
    return RunLine(
        run=name,
        state=WORDS.get(state, str(state)),
        standing=STANDINGS[state],
        steps=int(last["step"]) if last else 0,
        total_steps=config.total_steps,
        loss=timeline.of_events(events).final_loss,
        goodput=share,
        updated=utc(float(events[-1]["time"])) if events else "",
        href=page_link(ctx, f"{name}.html"),
    )


# Server for the pages of a workspace on loopback. It is needed because browsers follow no links from Dagster or MLflow
# to files.
#
# It serves only files in `reports/` and the Data Docs. It refuses listings, symbolic links, hard links and other host
# names. The pages need no server: `reports/index.html` opens as a file.

#: Pages run their own inline scripts and load nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve(workspace: Workspace, host: str, port: int) -> ThreadingHTTPServer:
    """Serve the pages in a thread of this process. The caller ends the server with `shutdown` and `server_close`.

    Raises:
        OSError: the port is in use.
    """
    allowed = (workspace.reports.resolve(), docs_index(workspace).parent.resolve())
    root, index = workspace.root.resolve(), path(workspace)

    class PageHandler(BaseHTTPRequestHandler):
        """Handler of GET and HEAD requests."""

        server_version = "plinth"
        sys_version = ""

        def do_GET(self) -> None:
            content = self._head()
            if content:
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            if (self.headers.get("Host") or "").rpartition(":")[0] not in NAMES:  # protects against DNS rebinding
                return self._refused(HTTPStatus.FORBIDDEN)
            place = unquote(urlsplit(self.path).path).lstrip("/")
            if place == "":
                self.send_response(HTTPStatus.FOUND)
                self.send_header("Location", f"/{index.relative_to(workspace.root).as_posix()}")
                self.end_headers()
                return b""
            content = _content(root, place, allowed)
            if content is None:
                return self._refused(HTTPStatus.NOT_FOUND)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", mimetypes.guess_type(place)[0] or "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            return content

        def _refused(self, status: HTTPStatus) -> bytes:
            self.send_error(status)
            return b""

        def log_message(self, format: str, *args: object) -> None:
            """Discard the log line of a request."""

    server = ThreadingHTTPServer((host, port), PageHandler)
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    return server


def _content(root: Path, place: str, allowed: tuple[Path, ...]) -> bytes | None:
    """Return the content of a page. The content is read from the same open file that was checked, because other users
    with write access may replace the path.

    Args:
        root: resolved path of the workspace.
        place: path of the page below the workspace, as requested.
        allowed: folders of pages.
    """
    try:
        path = os.path.normpath(root / place)
        if not any(Path(path).is_relative_to(folder) for folder in allowed):
            return None
        with open_unlinked(path, depth=len(Path(path).relative_to(root).parts) - 1) as stream:
            return stream.read() if os.fstat(stream.fileno()).st_nlink == 1 else None
    except (OSError, ValueError):
        return None
