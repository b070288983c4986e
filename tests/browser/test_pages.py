"""As a person would: look at the pipeline in Dagster, log in and approve in MLflow, and see the sensor promote."""

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute import context
from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth_assets.catalog import stages
from plinth_jobs import definitions
from plinth_registry import decisions, policy
from plinth_registry.gates.settings import ApprovalPolicy
from plinth_registry.mlflow import connection
from plinth_registry.mlflow import settings as login
from plinth_registry.mlflow.server import ensure_server, stop_server
from tests import services
from tests.jobs.conftest import ROOT, UNAPPROVED, plinth, variant
from tests.registry.login.conftest import ADA, enrol_server
from tests.shared import copied

pytestmark = [pytest.mark.slow, pytest.mark.needs("Chromium")]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WAIT_MS = 300_000


def _until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def workspace(pending, tmp_path_factory) -> Path:
    """A candidate that waits for a person."""
    folder = copied(pending, tmp_path_factory.mktemp("browser") / "workspace")
    variant(folder, UNAPPROVED)
    yield folder
    stop_server(Workspace(folder))


@pytest.fixture(scope="module")
def password(workspace, trust_folder, tmp_path_factory):
    """That of a person whom the policy lists, at the login that MLflow asks for from now on."""
    trust = tmp_path_factory.mktemp("trust") / "trust"
    shutil.copytree(trust_folder, trust, ignore=shutil.ignore_patterns("seen.json", ".*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(trust))
        space = Workspace(workspace)
        enrol_server(space)
        login.ask(space, login.LoginSettings())
        before = policy.current(Context(space), "tiny").policy
        asked = ApprovalPolicy(accepted=("statement", "tag"), proxies=(login.SIGNER,), approvers=(ADA,))
        policy.sign(Context(space), before.model_copy(update={"version": 2, "approvals": asked}))
        yield connection.add_person(space, ADA, "tiny-candidate")


@pytest.fixture(scope="module")
def dagster(workspace, password):
    """`plinth up`, with daemon and sensors; the address of the Dagster pages."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", workspace, "up", "--dagster-port", port]
    command += ["-r", workspace / "variant.yaml"]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    _until(lambda: _answers(f"{url}/server_info"), 300, "Dagster's start")
    yield url
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=300)


@pytest.fixture(scope="module")
def page(password):
    from playwright.sync_api import sync_playwright

    chromium = services.program(*services.CHROMIUM)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(
            viewport={"width": 1600, "height": 1000}, http_credentials={"username": ADA, "password": password}
        )
        page.set_default_timeout(WAIT_MS)
        yield page
        browser.close()


def test_the_asset_graph_shows_the_pipeline(dagster, page):
    page.goto(f"{dagster}/asset-groups")
    for group in ("sources", "documents", "annotations", "dedup", "verdicts", "tokens", "training", "registry"):
        page.get_by_text(group, exact=True).first.wait_for()


def test_an_asset_shows_its_version_check_and_plot(dagster, page):
    page.goto(f"{dagster}/assets/funnel")
    page.get_by_text("Latest check results").first.wait_for()
    page.get_by_text("[Show Markdown]").first.click()
    plot = page.locator("img[alt=plot]").first
    plot.wait_for()
    assert plot.evaluate("image => image.naturalWidth") > 300
    page.goto(f"{dagster}/assets/web/curated")
    page.get_by_text("large_string").first.wait_for()  # the schema of its columns


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "asset",
    [
        *("web/documents", "web/c4", "web/policy", "web/shards", "tokenizer", "mixture", "run", "checkpoint"),
        *("evaluation", "candidate"),
    ],
)
def test_everything_of_an_asset_is_within_three_clicks(workspace, dagster, page, asset):
    within_three_clicks(workspace, dagster, page, asset)


def within_three_clicks(workspace: Path, dagster: str, page: Any, asset: str) -> None:
    """From the start page: what an asset is and whose, its versions, cost, freshness, checks and plots."""
    recipe, ctx = load(workspace / "variant.yaml"), Context(Workspace(workspace))
    (stage,) = [one for one in stages(recipe) if one.asset == asset]
    page.goto(dagster)
    page.locator('a[href="/assets"]').first.click()
    _scrolled_to(page, page.locator(f'a[href="/assets/{asset}"]').first).click()
    cost = page.get_by_text("cost_usd", exact=True).first
    cost.wait_for()
    two_clicks = page.url
    fresh = "Freshness policy" if stage.group in definitions.CORPUS_GROUPS else "Latest materialization"
    versions = (stage.code_version, ctx.refs.ref(asset).digest)
    for words in (stage.owner, "Kinds", "cpu_seconds", *versions, "Latest materialization", fresh):
        _until(lambda words=words: words in page.locator("body").inner_text(), 120, words)
    assert context.load(ctx.workspace, asset).wall_s > 0
    page.get_by_text("Plots", exact=True).click()
    page.locator("canvas").first.wait_for()
    page.goto(two_clicks)
    page.get_by_role("tab", name="Checks").or_(page.get_by_role("link", name="Checks")).first.click()
    for name in ("marks", *(["expectations"] if stage.suite else [])):
        page.get_by_text(name, exact=True).first.wait_for()


def _scrolled_to(page: Any, link: Any) -> Any:
    """A link of the catalog, which draws only the rows in sight."""
    page.get_by_text("Asset name").first.wait_for()
    page.mouse.move(800, 600)
    _until(lambda: link.count() or page.mouse.wheel(0, 600), 120, "the row")
    link.scroll_into_view_if_needed()
    return link


def test_a_person_approves_in_mlflow_and_the_sensor_promotes(workspace, dagster, page):
    recipe, ctx = load(workspace / "variant.yaml"), Context(Workspace(workspace))
    assert decisions.history(ctx, recipe) == ()
    page.goto(f"{ensure_server(ctx.workspace)}/#/models/tiny-candidate/versions/1")
    tags = {"approval": "approved", "approval.reason": "read the evidence"}
    for name, value in tags.items():
        page.get_by_placeholder("Name", exact=True).fill(name)
        page.get_by_placeholder("Value", exact=True).fill(value)
        page.get_by_role("button", name="Add", exact=True).last.click()
        page.get_by_role("cell", name=value, exact=True).first.wait_for()
    page.goto("about:blank")  # an open page draws and asks all the time
    _until(lambda: decisions.history(ctx, recipe), 600, "the promotion")
    last = decisions.history(ctx, recipe)[-1]
    assert (last.model, last.version) == ("tiny", "1")
    assert [(approval.by, approval.proxy) for approval in last.approvals] == [(ADA, login.SIGNER)]
    _until(lambda: decisions.history(ctx, recipe)[-1].action == "champion", 300, "the alias")
    page.goto(f"{ensure_server(ctx.workspace)}/#/models/tiny")
    page.get_by_text("champion").first.wait_for()
    page.goto(f"{dagster}/runs")
    page.get_by_text("make_release").first.wait_for()


@pytest.mark.exhaustive
def test_everything_of_a_release_is_within_three_clicks(workspace, dagster, page):
    within_three_clicks(workspace, dagster, page, "release")


@pytest.mark.exhaustive
def test_a_mark_is_seen_on_the_version_and_on_the_assets(workspace, dagster, page):
    ctx = Context(Workspace(workspace))
    version = f"{ensure_server(ctx.workspace)}/#/models/tiny-candidate/versions/1"
    page.goto(version)
    page.get_by_role("cell", name="lineage").first.wait_for()  # the gates with what they saw
    plinth(workspace, "release", "taint", "web/documents", "--by", "dpo@example.org", "--reason", "must be removed")
    page.reload()
    page.get_by_text("TAINTED, do not use").first.wait_for()
    for asset in ("web/curated", "web/documents"):
        page.goto(f"{dagster}/assets/{asset}?view=checks")
        page.get_by_text("marks", exact=True).first.click()
        page.get_by_text("is tainted by dpo@example.org").first.wait_for()
    page.get_by_text("[Show Markdown]").first.click()
    graph = page.locator("img[alt=plot]").first
    graph.wait_for()
    assert graph.evaluate("image => image.naturalWidth") > 300
