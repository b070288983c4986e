"""The index of a workspace: what it reads, and what happens where that cannot be read."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from plinth.compute.context import Context, manifest
from plinth.operation import workspace_files
from plinth.operation.workspace_files import CHECKED
from plinth.recipe.load import load
from plinth.records import Step
from plinth.report.page import StateTile
from plinth.storage.workspace import Workspace
from plinth.training.run_state import RunWatch
from plinth_jobs import index_tiles, workspace_index
from plinth_ops.gamedays import play
from plinth_ops.gamedays.gameday import GameDayRecord, Instant, Outcome
from plinth_registry import incidents
from plinth_registry.mlflow.server import DATABASE
from tests.jobs.conftest import RECIPE
from tests.plinth.test_extensions import Site, site
from tests.shared import copied

__all__ = ["site"]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "w").ensure())


def tiles(ctx: Context, recipe: object = None) -> dict[str, StateTile]:
    return {tile.label: tile for tile in index_tiles.tiles(ctx, recipe)}  # type: ignore[arg-type]


def test_an_empty_workspace_has_an_index(ctx: Context) -> None:
    written = workspace_index.write(ctx, None)
    assert written == ctx.workspace.reports / "index.html"
    assert "No training run has been started yet." in written.read_text()
    of_operation = {"Incidents", "Checks", "Game days", "Source values"}
    assert set(tiles(ctx)) == {"Alerts, last 24 hours", "Budgets", "Service levels", *of_operation}


def test_alerts_of_today_are_counted_and_a_torn_line_too(ctx: Context) -> None:
    rows = [{"time": time.time() - 2 * 86400, "job": "old", "message": "past"},
            {"time": time.time(), "job": "feed", "message": "the root\nchanged"}]  # fmt: skip
    path = ctx.workspace.root / "alerts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (tiles(ctx)["Alerts, last 24 hours"].value, tiles(ctx)["Alerts, last 24 hours"].note) == (
        "1",
        "feed: the root",
    )
    path.write_text(path.read_text() + '{"time": 1')
    assert tiles(ctx)["Alerts, last 24 hours"].value == "2"


def test_an_open_incident_is_bad_until_it_is_closed(ctx: Context, own_trust: Path) -> None:
    assert tiles(ctx)["Incidents"].value == "0 open"
    made = incidents.declare(ctx, "loss diverges", "ada@example.org")
    (ctx.workspace.reports / f"incident-{made.number}.html").write_text("x")
    tile = tiles(ctx)["Incidents"]
    assert (tile.value, tile.standing, tile.href) == ("1 open", "bad", f"incident-{made.number}.html")
    assert "loss diverges" in tile.note
    incidents.close(ctx, made.number, "mended", "ada@example.org")
    assert (tiles(ctx)["Incidents"].value, tiles(ctx)["Incidents"].standing) == ("0 open", "good")


def test_the_last_check_of_an_asset_counts(ctx: Context) -> None:
    for asset, passed, failures in (("a", False, 1), ("b", True, 2), ("c", True, 0)):
        workspace_files.append(ctx, CHECKED, asset, passed=passed, evaluated=3, failures=failures)
    assert (tiles(ctx)["Checks"].value, tiles(ctx)["Checks"].note) == ("2 of 3 assets pass", "a")
    workspace_files.append(ctx, CHECKED, "a", passed=True, evaluated=3, failures=0)
    tile = tiles(ctx)["Checks"]
    assert (tile.value, tile.note, tile.standing) == ("3 of 3 assets pass", "b", "attention")


def test_the_last_record_of_a_game_day_counts(ctx: Context, own_trust: Path) -> None:
    texts = ("hypothesis", "fault", "blast_radius", "abort", "protection", "version", "machine")
    whole = Instant(number=0, struck="at step 3", findings=(Outcome(what="weights", passed=True),))
    played = GameDayRecord(
        name="full-disk", alerts=(), seed=1, seconds=1.0, instants=(whole,), **dict.fromkeys(texts, "-")
    )
    play.append(ctx, played)
    assert tiles(ctx)["Game days"].value == "1 of 1 passed"
    play.append(ctx, played.model_copy(update={"instants": ()}))
    tile = tiles(ctx)["Game days"]
    assert (tile.value, tile.note, tile.standing) == ("0 of 1 passed", "full-disk", "bad")


def test_verdicts_on_sources_are_counted_and_an_open_one_is_shown(ctx: Context) -> None:
    verdicts = {"value-forum": "buy", "value-mail": "not decided", "filters": None}
    for name, verdict in verdicts.items():
        stats = {"value": {"verdict": verdict}} if verdict else {"effects": []}
        step = Step(name="experiment/effects", version="2")
        ctx.refs.publish(manifest(f"experiment/{name}/effects", step, {}, [], stats), name)
        (ctx.workspace.reports / f"experiment-{name}.html").write_text("x")
    tile = tiles(ctx)["Source values"]
    assert (tile.value, tile.standing, tile.href) == ("1 of 2 decided", "attention", "experiment-value-mail.html")
    assert tile.note == "value-forum: buy, value-mail: not decided"


def test_a_part_that_cannot_be_read_is_unknown_and_hides_no_other(ctx: Context) -> None:
    (ctx.workspace.root / "objectives.yaml").write_text("nonsense: [")
    found = tiles(ctx)
    assert found["Service levels"].standing == "unknown"
    assert "objectives.yaml" in found["Service levels"].note
    assert found["Alerts, last 24 hours"].standing == "good"


def test_a_tile_of_a_package_that_fails_is_unknown(ctx: Context, site: Site) -> None:
    body = "from plinth_jobs.index_tiles import AddedTile\nBAD = AddedTile(name='bad', state=lambda ctx: 1 / 0)\n"
    site.module("bad_tile.py", body)
    site.install("acme-tiles", "bad", "bad_tile:BAD", "plinth.tiles")
    bad = next(tile for tile in index_tiles.tiles(ctx, None) if tile.label == "Bad")
    assert (bad.standing, bad.note) == ("unknown", "ZeroDivisionError: division by zero")


def test_a_run_that_cannot_be_read_has_a_line(ctx: Context) -> None:
    run = ctx.workspace.runs / "r1"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "events.jsonl").write_text("")
    text = workspace_index.write(ctx, None).read_text()
    assert ">unknown</span>" in text
    assert ">r1</td>" in text.replace("<tr><td>r1", ">r1")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tiny-candidate-2.html", "Results"), ("tiny-checkpoint-0123456789ab.html", "Results"),
     ("tiny-corpus-0123456789ab.html", "Results"), ("tiny.html", "Other pages"),
     ("tiny-checkpoint-0123456789ab-evaluation.html", "Evaluation"), ("comparison-ab12.html", "Comparisons"),
     ("tiny-checkpoint-0123456789ab-comparison.html", "Comparisons"), ("tiny-canary-2-champion-1.html", "Canary"),
     ("experiment-f.html", "Experiments"), ("loop-nightly.html", "Experiments"),
     ("incident-2.html", "Incidents"), ("gameday-full-disk.html", "Game days"),
     ("impact-1.html", "Impact"), ("r1.html", "Runs"), ("whatever.html", "Other pages")],
)  # fmt: skip
def test_pages_are_listed_by_kind_with_their_own_title(ctx: Context, name: str, kind: str) -> None:
    (ctx.workspace.runs / "r1").mkdir(parents=True)
    (ctx.workspace.runs / "r1" / "config.json").write_text("{}")
    (ctx.workspace.reports / name).write_text("<title>\n What &amp; why </title>")
    (ctx.workspace.reports / "index.html").write_text("<title>itself</title>")
    found = {group.name: [(line.title, line.href) for line in group.pages] for group in workspace_index.groups(ctx)}
    assert {group: lines for group, lines in found.items() if lines} == {kind: [("What & why", name)]}


def test_every_candidate_is_linked_newest_first(ctx: Context) -> None:
    for version in (10, 9, 2):  # whichever page was written again last
        (ctx.workspace.reports / f"tiny-candidate-{version}.html").write_text("x")
    (found,) = [group.pages for group in workspace_index.groups(ctx) if group.name == "Results"]
    assert [line.href for line in found] == [f"tiny-candidate-{version}.html" for version in (10, 9, 2)]


def test_what_is_published_changes_what_was_seen_and_the_index_does_not(ctx: Context) -> None:
    watch = RunWatch(ctx.workspace.runs)
    before = workspace_index.seen(ctx.workspace, watch)
    workspace_index.write(ctx, None)
    assert workspace_index.seen(ctx.workspace, watch) == before
    (ctx.workspace.reports / "impact-1.html").write_text("x")
    assert workspace_index.seen(ctx.workspace, watch) != before


def test_an_index_that_cannot_be_written_is_a_warning(ctx: Context) -> None:
    ctx.workspace.reports.rmdir()
    ctx.workspace.reports.write_text("no folder")
    said: list[str] = []
    workspace_index.refresh(ctx.workspace, said.append)
    assert len(said) == 1
    assert "was not written" in said[0]


@pytest.mark.slow
def test_the_state_of_a_trained_workspace(pending: Path, tmp_path: Path) -> None:
    """Every link of the index leads to a file; assets, run and service levels are what the commands say."""
    ctx = Context(Workspace(copied(pending, tmp_path / "w")))
    (ctx.workspace.mlflow / DATABASE).unlink()  # without candidates, no server is started for approvals
    found = tiles(ctx, load(RECIPE))
    assert found["Release"].value == "tiny: none"
    assert re.fullmatch(r"\d+ of \d+ up to date", found["Assets"].value)
    assert not [tile for tile in found.values() if tile.standing == "unknown"]
    written = workspace_index.write(ctx, load(RECIPE))
    text = written.read_text()
    assert ">finished " in text.replace("<td>finished", ">finished")
    links = re.findall(r'href="([^"#]+)"', text)
    assert links
    assert [link for link in links if not (written.parent / link).exists()] == []
