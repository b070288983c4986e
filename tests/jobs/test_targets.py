"""Models by user-facing names: a target without such a model gets an error, for any form of name."""

import os
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.telemetry.timeline import Timeline
from plinth_jobs import targets
from plinth_jobs.targets import find_run
from tests.plinth.training.conftest import tiny


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def release() -> str:
    return "nobody"


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "../none", "~none/x"])
def test_a_path_without_a_folder_is_no_version(ctx: Context, name: str) -> None:
    with pytest.raises(MissingError, match="no folder"):
        targets.model(ctx, name, release)


@pytest.mark.parametrize("name", ["latest", "none:4", "latest:x", "[", "**", "", ".", "/", "abcd1234", "None"])
def test_what_names_no_model_says_so(ctx: Context, name: str) -> None:
    with pytest.raises(MissingError):
        targets.model(ctx, name, release)


def test_a_manifest_of_another_asset_is_no_model(ctx: Context) -> None:
    made = Manifest(asset="funnel", step="f", version="1", params={}, inputs={}, parts=())
    model = made.model_copy(update={"asset": "weights"})
    for one in (made, model):
        ctx.refs.save(one)
    with pytest.raises(MissingError, match="a manifest of funnel"):
        targets.model(ctx, made.digest, release)
    assert targets.model(ctx, model.digest[:12], release) == model


def test_the_nearest_model_is_named(ctx: Context) -> None:
    (ctx.workspace.runs / "demo-3fa9c1d2e0b4").mkdir(parents=True)
    (ctx.workspace.runs / "demo-3fa9c1d2e0b4" / "config.json").write_text("{}")
    for name, near in (("latst", "latest"), ("relase", "release"), ("demo-3fa9c1d2e0b5", "demo-3fa9c1d2e0b4")):
        with pytest.raises(MissingError) as error:
            targets.model(ctx, name, release)
        assert error.value.remedy == f"did you mean '{near}'?"
    with pytest.raises(MissingError) as error:
        targets.model(ctx, "nope", release)
    assert error.value.expected == "release, champion, canary, latest, demo-3fa9c1d2e0b4, a digest or a folder"
    with pytest.raises(MissingError) as error:
        find_run(ctx, "dmo-3fa9")
    assert error.value.remedy == "did you mean 'demo-3fa9c1d2e0b4'?"


def test_latest_is_the_run_that_was_started_last_whatever_its_state(
    ctx: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("b", "a")):  # the published run is b, and a was started after it
        config = tiny(ctx.workspace.root, run_id=name)
        configuration.write(config)
        Timeline(config.directory.events).append("submitted", launcher="local")
        lines = config.directory.events.read_text().replace('"time": 1', f'"time": {number}1', 1)
        config.directory.events.write_text(lines)
    os.utime(ctx.workspace.runs / "b" / "config.json")  # a copy without times of files changes nothing
    ctx.refs.publish(Manifest(asset="run", step="r", version="1", params={}, inputs={}, parts=(),
                              stats={"run_id": "b"}), "key")  # fmt: skip
    assert find_run(ctx, "latest").run_id == "a"
    assert capsys.readouterr().err.startswith("latest: a (")
