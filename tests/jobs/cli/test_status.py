"""`plinth status` reads what the recipe names, however much else the workspace keeps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage import listing, off_limits, seal
from plinth.storage.workspace import Workspace
from plinth.training.directory import without_result
from plinth_assets.catalog import stages
from plinth_jobs.cli import status
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE

Plinth = Callable[..., Any]

_counted: Counter[str] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _counted is not None and event in ("open", "os.listdir", "os.scandir"):
        _counted[event] += 1


sys.addaudithook(_hook)  # hooks stay until the process ends: this one counts while it is asked to


def _opened(call: Callable[[], object]) -> Counter[str]:
    global _counted
    _counted = Counter()
    try:
        call()
        return _counted
    finally:
        _counted = None


def _publish(ctx: Context, count: int) -> None:
    """The first stages of the tiny recipe, up to date: manifests without parts under the keys that they have now."""
    done: dict[str, str] = {}
    for stage in stages(load(RECIPE))[:count]:
        inputs = {dep: done[dep] for dep in stage.deps}
        made = Manifest(asset=stage.asset, step="synthetic", version="1", params={}, inputs=inputs, parts=())
        ctx.refs.publish(made, stage.key(ctx, inputs))
        done[stage.asset] = made.digest


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(off_limits, "REMEMBERED_S", 1_000_000)  # as in the first call, however long the test takes
    monkeypatch.setattr(listing, "SETTLED_S", 0.0)  # files of a moment ago are not read a second time
    tiny_corpus.write(tmp_path / "w" / "input")
    return Context(Workspace(tmp_path / "w").ensure())


def _run(ctx: Context, name: str, *files: str) -> None:
    folder = ctx.workspace.runs / name
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("{}")


def test_it_opens_no_more_files_for_old_manifests_and_ended_runs(ctx: Context, plinth: Plinth) -> None:
    def show() -> None:
        assert f"{made} of" in plinth("status", "-w", ctx.workspace.root, "-r", RECIPE).out

    made = 6
    _publish(ctx, made)
    show()  # loads what is loaded once in a process
    before = _opened(show)
    for number in range(300):
        (ctx.workspace.manifests / f"{number:064x}.json").write_text("{}")
    for number in range(60):
        _run(ctx, f"ended-{number}", "config.json", "handle.json", "result.json")
    assert _opened(show) == before
    made = 9
    _publish(ctx, made)
    show()
    after = _opened(show)
    assert after["open"] - before["open"] <= 2 * 3  # a reference and a manifest of each
    assert after["os.listdir"] + after["os.scandir"] == before["os.listdir"] + before["os.scandir"]


def test_what_cannot_be_read_is_named_and_hides_no_other_asset(ctx: Context, plinth: Plinth) -> None:
    _publish(ctx, 4)
    torn, lost, *whole = (stage.asset for stage in stages(load(RECIPE))[:4])
    digest = ctx.refs.current(lost).digest
    (ctx.workspace.manifests / f"{digest}.json").unlink()
    (ctx.workspace.refs / f"{torn}.json").write_text('{"torn')
    ran = plinth("status", "-w", ctx.workspace.root, "-r", RECIPE, "--json")
    assert ran.code == IntegrityError.exit_code
    states = {row["asset"]: row["state"] for row in json.loads(ran.out)}
    assert [name for name, state in states.items() if state == "broken"] == [torn, lost]
    assert all(states[name] == "stale" for name in whole)
    assert f"{lost}: no manifest {digest}" in ran.err
    assert f"{torn}.json is not a reference" in ran.err


def test_a_model_shows_what_was_measured_of_it(ctx: Context, plinth: Plinth, tmp_path: Path) -> None:
    learns = tmp_path / "learns.yaml"
    learns.write_text(f"extends: {RECIPE}\ncorpus: {{documents: {{extraction_model: {{buckets: [web]}}}}}}\n")
    stats = {"agreement": 0.93456, "measured_articles": 1234, "not_taught": {"timeout": 2}}
    made = Manifest(asset="models/main_content", step="s", version="1", params={}, inputs={}, parts=(), stats=stats)
    ctx.refs.publish(made, "key")
    words = ("status", "-w", ctx.workspace.root, "-r", learns)
    assert "models/main_content: agreement 0.9346, measured articles 1,234\n" in plinth(*words).out
    figures = {row["asset"]: row["figures"] for row in json.loads(plinth(*words, "--json").out)}
    assert figures.pop("models/main_content") == {"agreement": 0.93456, "measured_articles": 1234}
    assert set(figures.values()) == {None}


def test_runs_that_may_be_alive_were_submitted_and_have_no_result(ctx: Context) -> None:
    _run(ctx, "never-submitted", "config.json")
    _run(ctx, "ended", "config.json", "handle.json", "result.json")
    _run(ctx, "b", "config.json", "handle.json")
    _run(ctx, "a", "config.json", "handle.json")
    assert [one.root.name for one in without_result(ctx.workspace.runs)] == ["a", "b"]
    assert list(without_result(ctx.workspace.root / "none")) == []


def test_many_assets_of_a_group_in_one_state_are_one_line(
    ctx: Context, plinth: Plinth, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(ctx, 3)
    monkeypatch.setattr(status, "LISTED", 2)
    shown, every = (plinth("status", "-w", ctx.workspace.root, "-r", RECIPE, *more).out for more in ((), ("--all",)))
    names = [stage.asset for stage in stages(load(RECIPE))]
    assert all(f" {name} " in every for name in names)
    listed = [name for name in names if f" {name} " in shown]
    lines = re.findall(r"(\w+): (\d+) assets +(up to date|never materialized|stale)", shown)
    assert len(listed) + sum(int(count) for _, count, _ in lines) == len(names)
    assert len({line[::2] for line in lines}) == len(lines) > 3
    for group, count, state in lines:
        assert int(count) > 2, (group, state)


def test_what_another_seal_published_is_said_and_not_only_stale(ctx: Context, plinth: Plinth, own_trust: Path) -> None:
    """The trust folder of a moved workspace has another path: without a message, everything would be rebuilt
    silently."""
    _publish(ctx, 3)
    assert "another seal" not in plinth("status", "-w", ctx.workspace.root, "-r", RECIPE).out
    (own_trust / seal.SECRET_FILE).unlink()
    seal.make(own_trust)
    _publish(Context(ctx.workspace), 2)
    found = plinth("status", "-w", ctx.workspace.root, "-r", RECIPE).out
    assert "1 asset was published under another seal or without a seal" in found
    assert "2 of" in found


def test_a_wrong_selection_leaves_nothing_behind(tmp_path: Path, plinth: Plinth) -> None:
    """Neither a workspace nor the recipe that later commands would take."""
    assert plinth("run", "-w", tmp_path / "w", "-r", RECIPE, "--select", "web/polcy").code == 3
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("words", [("status",), ("status", "-r", RECIPE), ("run", "plan"), ("report",)])
def test_a_workspace_that_is_not_there_is_named(tmp_path: Path, plinth: Plinth, words: tuple[object, ...]) -> None:
    """The error does not name the recipe, which could not have been noted; no table of missing assets is printed."""
    done = plinth(*words, "-w", tmp_path / "absent")
    assert (done.code, done.out) == (3, "")
    assert f"no workspace at {tmp_path / 'absent'}" in done.err


def test_a_workspace_without_a_recipe_says_so(ctx: Context, plinth: Plinth) -> None:
    assert "no recipe was run in" in plinth("status", "-w", ctx.workspace.root).err


#: Packages that neither the keys of stages nor the checks of a recipe need.
HEAVY = ("torch", "dagster", "mlflow", "pandas", "duckdb", "matplotlib", "requests", "chardet", "boto3",
         "securesystemslib", "plinth.report.run_metrics")  # fmt: skip


@pytest.mark.parametrize("words", [("status",), ("recipe", "check", str(RECIPE))])
def test_it_imports_nothing_that_keys_and_checks_do_not_need(words: tuple[str, ...], ctx: Context) -> None:
    _publish(ctx, 3)
    options = ["-w", str(ctx.workspace.root), "-r", str(RECIPE)]
    code = (
        f"import sys; from plinth_jobs.cli import call; assert call({[*options, *words]}) == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
