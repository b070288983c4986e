"""Renew the README's pictures from the workspace's last run: `make screenshots`.

    docs/images/asset-graph.png   the whole pipeline in the Dagster pages, by groups
    docs/images/results.png       the page of results
    docs/images/run.png           the page of a run: of the walkthrough in docs/training.md, when the workspace has it

Serves the workspace with `plinth up` for as long as it takes. Needs Chromium and the `dev` extra.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
START_TIMEOUT_S = 180


def main() -> None:
    """Take the pictures that the workspace has something for."""
    workspace = Path(os.environ.get("PLINTH_WORKSPACE", "workspace"))
    runs = {path.name for path in (workspace / "runs").glob("*")}
    every = sorted((workspace / "reports").glob("*.html"), key=lambda page: page.stat().st_mtime)
    pages = [page for page in every if page.stem not in runs]
    of_runs = [page for page in every if page.stem in runs]
    if not every:
        sys.exit(f"no page of results in {workspace / 'reports'}: run `make demo` first")
    IMAGES.mkdir(exist_ok=True)
    with browser_page() as page:
        if of_runs:
            run_page(page, max(of_runs, key=lambda path: (path.stem.startswith("story-"), path.stat().st_mtime)))
        if not pages:  # a run alone, such as the walkthrough's
            return
        page.goto(pages[-1].absolute().as_uri())
        page.screenshot(path=IMAGES / "results.png", full_page=True)
        with served(workspace) as url:
            graph(page, f"{url}/asset-groups")
            page.screenshot(path=IMAGES / "asset-graph.png")
    print(*sorted(IMAGES.glob("*.png")), sep="\n")


def run_page(page: Page, path: Path) -> None:
    """The page of a run, by step: so that a long pause between two jobs does not squeeze what happened."""
    page.goto(path.absolute().as_uri())
    page.check("#by-step")
    page.screenshot(path=IMAGES / "run.png", full_page=True)


def graph(page: Page, address: str) -> None:
    """A graph of the Dagster pages, fitted to the window."""
    page.goto(address)
    page.wait_for_timeout(10_000)  # the layout is computed by a worker of the page


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of the system's Chromium."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        sys.exit("no Chromium here: `make setup-test` installs one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1440, "height": 760}, device_scale_factor=1.5)
        browser.close()


@contextmanager
def served(workspace: Path) -> Iterator[str]:
    """`plinth up` on a free port; yields the address of the Dagster pages."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from plinth_jobs.cli import main; main()", "-w", str(workspace), "up"]
    process = subprocess.Popen([*command, "--dagster-port", str(port)], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(f"{url}/server_info", process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"{url} does not answer")


if __name__ == "__main__":
    main()
