"""Renew the README's pictures from the workspace's last run: `make screenshots`.

    docs/images/asset-graph.png   the asset graph in Dagster, by groups
    docs/images/results.png       the top of the results page
    docs/images/champion.png      the champion in MLflow: its description, aliases and tags
    docs/images/run.png           metrics on a run page: of the walkthrough in docs/training.md, if the workspace has it

Serves the workspace with `plinth up` meanwhile. Needs Chromium and the `dev` extra.
"""

from __future__ import annotations

import json
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

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import ensure_server

IMAGES = Path(__file__).parent / "images"
START_TIMEOUT_S = 600
WIDTH, HEIGHT, SCALE = 1440, 760, 1.5
#: Width of a column of a workspace page, and the height at which a long page is cut.
COLUMN, TALL = 1120, 1400
#: Colors of a picture: enough for pages and plots, in a third of the bytes.
COLORS = 256


def main() -> None:
    """Take the pictures that the workspace has something for."""
    workspace = Path(os.environ.get("PLINTH_WORKSPACE", "workspace"))
    runs = {path.name for path in (workspace / "runs").glob("*")}
    every = sorted((workspace / "reports").glob("*.html"), key=lambda page: page.stat().st_mtime)
    pages = [page for page in every if "-candidate-" in page.stem]
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
        picture(page, "results", (COLUMN, TALL))
        with served(workspace) as url:
            graph(page, f"{url}/asset-groups")
            picture(page, "asset-graph")
            champion(page, ensure_server(Workspace(workspace)))
    print(*sorted(IMAGES.glob("*.png")), sep="\n")


def run_page(page: Page, path: Path) -> None:
    """Take a picture of a run's metrics by step: a long pause between two jobs would squeeze them."""
    page.goto(path.absolute().as_uri())
    page.check("#by-step")
    metrics = page.locator("#metrics")
    picture(page, "run", (COLUMN, TALL), metrics)


def graph(page: Page, address: str) -> None:
    """Capture a graph of the Dagster pages, fitted to the window."""
    page.goto(address)
    page.locator("foreignObject").first.wait_for()  # the layout is computed by a worker of the page
    page.wait_for_timeout(10_000)


def champion(page: Page, url: str) -> None:
    """Take a picture of the champion's version in MLflow, if a model has one."""
    with urllib.request.urlopen(f"{url}/api/2.0/mlflow/registered-models/search") as answer:
        models = json.load(answer).get("registered_models", [])
    for model in models:
        for alias in model.get("aliases", []):
            if alias["alias"] == "champion":
                version = f"{url}/#/models/{model['name']}/versions/{alias['version']}"
                page.goto(version, wait_until="domcontentloaded")
                page.get_by_role("cell", name="lineage").first.wait_for()
                assistant = page.get_by_text("MLflow Assistant").locator("xpath=following::button[3]")
                if assistant.count():  # a panel that MLflow opens for new users
                    assistant.first.click()
                page.wait_for_timeout(3_000)
                picture(page, "champion", (WIDTH, TALL))
                return


def picture(page: Page, name: str, size: tuple[int, int] = (WIDTH, HEIGHT), start: Locator | None = None) -> None:
    """Save a page, from its top or from an element, as a PNG with few colors. `size` is width and height in pixels."""
    path = IMAGES / f"{name}.png"
    page.set_viewport_size({"width": size[0], "height": size[1]})
    if start is not None:
        start.evaluate("element => element.scrollIntoView()")
    page.screenshot(path=path)
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    with Image.open(path) as taken:
        taken.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page in the system's Chromium."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        sys.exit("no Chromium here: `make setup-test` installs one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.set_default_timeout(START_TIMEOUT_S * 1000)
        yield page
        browser.close()


@contextmanager
def served(workspace: Path) -> Iterator[str]:
    """`plinth up` on free ports; yields the address of the Dagster pages."""
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, pages_port = probe.getsockname()[1], other.getsockname()[1]
    command = [sys.executable, "-c", "from plinth_jobs.cli import main; main()", "-w", str(workspace), "up"]
    ports = ["--dagster-port", str(port), "--pages-port", str(pages_port)]
    process = subprocess.Popen([*command, *ports], stdout=subprocess.DEVNULL)
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
