"""Annotators in other processes through Dagster Pipes: a real client, a real program, and its faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth_assets.framework.pipes import PipesAnnotator
from plinth_jobs import definitions, recipes
from plinth_jobs.dg import RecipeComponent
from plinth_jobs.instance import interruptible
from tests.jobs.conftest import RECIPE, copied, here, variant

ASSET, CHECK = "prose/characters", "scores_in_range"
KEY = dg.AssetKey(["team", *ASSET.split("/")])

#: A program without Plinth. Every column of every document is 1.
PROGRAM = """
import json, os, sys
import pyarrow as pa
import pyarrow.parquet as pq
from dagster_pipes import open_dagster_pipes

fault = os.environ.get("FAULT", "")
with open_dagster_pipes() as pipes:
    with open(pipes.get_extra("work")) as stream:
        work = json.load(stream)
    for file in work["files"]:
        table = pq.read_table(file["documents"], columns=["id"])
        for column in work["columns"]:
            kind = "float32" if fault == "type" else column["type"].replace("double", "float64")
            table = table.append_column(column["name"], pa.array([1] * table.num_rows).cast(kind))
        pq.write_table(table.slice(1) if fault == "rows" else table, file["output"])
        pipes.log.info(f"annotated {file['rows']} documents with {work['annotator']} {work['version']}")
        if fault == "dies":
            os.truncate(file["output"], os.path.getsize(file["output"]) // 2)
            os.kill(os.getpid(), 9)
    pipes.report_asset_materialization(metadata={"model": "m-1"})
    if fault != "unreported":
        pipes.report_asset_check(
            check_name="scores_in_range", passed=fault not in ("check", "warns"),
            severity="WARN" if fault == "warns" else "ERROR", metadata={"highest": 1},
        )
if fault == "exit":
    sys.exit(3)
"""


@pytest.fixture
def workspace(pending: Path, tmp_path: Path) -> Path:
    return copied(pending, tmp_path / "workspace")


def project(workspace: Path, folder: Path, arguments: dict[str, Any], checks: tuple[str, ...] = ()) -> dg.Definitions:
    """Return a Dagster project with the recipe, one more annotator, and a Pipes client for it."""
    recipe = variant(folder, "corpus: {annotate: {characters: {}}}\n")
    pipes = {"characters": {"client": "other_process", "arguments": arguments, "checks": list(checks)}}
    attributes = {
        "recipe": str(recipe),
        "workspace": str(workspace),
        "workers": 1,
        "key_prefix": "team",
        "pipes": pipes,
    }
    with create_defs_folder_sandbox() as sandbox:
        contents = {"type": "plinth_jobs.dg.RecipeComponent", "attributes": attributes}
        path = sandbox.scaffold_component(component_cls=RecipeComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, defs):
            resources = {"other_process": dg.PipesSubprocessClient()}
            return dg.Definitions.merge(defs, dg.Definitions(resources=resources, executor=dg.in_process_executor))


def materialize(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = defs.resolve_implicit_global_asset_job_def()
    with interruptible():
        return job.execute_in_process(instance=instance, asset_selection=[KEY], raise_on_error=False)


def own_program(folder: Path, fault: str = "") -> dict[str, Any]:
    (folder / "program.py").write_text(PROGRAM)
    return {"command": [sys.executable, str(folder / "program.py")], "env": {"FAULT": fault}}


def checked(made: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str]]:
    return {
        one.check_name: (one.passed, one.description or "")
        for one in made.get_asset_check_evaluations()
        if one.check_name == CHECK
    }


@pytest.mark.slow
def test_a_program_in_another_process_writes_the_sidecar(workspace: Path, tmp_path: Path) -> None:
    defs = project(workspace, tmp_path, own_program(tmp_path), (CHECK,))
    dg.Definitions.validate_loadable(defs)
    with dg.DagsterInstance.ephemeral() as instance:
        first, again = materialize(defs, instance), materialize(defs, instance)
        logged = [one.user_message for one in instance.all_logs(first.run_id)]
    ctx = Context(Workspace(workspace))
    made, documents = ctx.refs.current(ASSET), ctx.refs.current("prose/documents").named("part-")
    assert (first.success, again.success) == (True, True)
    assert [part.rows for part in made.named("part-")] == [part.rows for part in documents]
    table = read_table(ctx.store, made.parts[0])
    assert all(set(column.to_pylist()) == {1} for column in table.columns)
    (shown,) = [one for one in first.get_asset_materialization_events() if one.asset_key == KEY]
    metadata = shown.materialization.metadata
    assert metadata["model"].value == "m-1"
    assert metadata["data_version"].value == made.digest
    assert f"annotated {documents[0].rows} documents with characters 1" in "\n".join(logged)
    assert checked(first) == {CHECK: (True, "")}
    assert checked(again) == {CHECK: (True, "not evaluated again: the program had nothing to do")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_installed_annotator_runs_in_another_environment(workspace: Path, tmp_path: Path) -> None:
    """The worker module and `plinth run` give the same data version."""
    command = [sys.executable, "-m", "plinth_assets.framework.pipes_worker"]
    local = copied(workspace, tmp_path / "local")
    elsewhere = project(workspace, tmp_path, {"command": command})
    with dg.DagsterInstance.ephemeral() as instance:
        made = materialize(elsewhere, instance)
        logged = "\n".join(one.user_message for one in instance.all_logs(made.run_id))
    assert made.success
    assert "rows annotated" in logged
    ran = here(local, "run", "-r", tmp_path / "variant.yaml", "--select", ASSET)
    assert ran.returncode == 0, ran.stderr
    made_here, made_there = (Context(Workspace(one)).refs.current(ASSET) for one in (local, workspace))
    assert made_here.digest == made_there.digest


FAULTS = {
    "exit": "External execution process failed with code 3",
    "dies": "External execution process failed with code -9",
    "rows": "wrote an invalid file for part-00000.parquet",
    "type": "(float)",
    "check": "reported a failed check",
    "unreported": "reported other checks than declared",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [fault if fault in ("rows", "check") else pytest.param(fault, marks=pytest.mark.exhaustive) for fault in FAULTS],
)
def test_a_fault_fails_the_asset_by_name_and_publishes_nothing(workspace: Path, tmp_path: Path, fault: str) -> None:
    defs = project(workspace, tmp_path, own_program(tmp_path, fault), (CHECK,))
    with dg.DagsterInstance.ephemeral() as instance:
        made = materialize(defs, instance)
        assert instance.get_latest_materialization_event(KEY) is None
    assert not made.success
    said = str(made.failure_data_for_node("team__prose__characters").error)
    assert "the program of annotator characters" in said
    assert FAULTS[fault] in said
    ctx = Context(Workspace(workspace))
    assert ctx.refs.published(ASSET) is None
    assert not list((ctx.store.root / "staging").iterdir())
    if fault == "check":
        assert checked(made) == {CHECK: (False, "")}


@pytest.mark.slow
def test_the_program_gets_no_keys_of_plinth(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLINTH_PIN", "PLINTH_KEY_PROMOTER", "PLINTH_PROXY_SECRET", "MY_TOKEN"):
        monkeypatch.setenv(name, "secret")
    arguments = own_program(tmp_path)
    path = tmp_path / "program.py"
    path.write_text(f"import os\nopen({str(tmp_path / 'seen')!r}, 'w').write(' '.join(os.environ))\n{PROGRAM}")
    with dg.DagsterInstance.ephemeral() as instance:
        made = materialize(project(workspace, tmp_path, arguments, (CHECK,)), instance)
    assert made.success
    seen = set((tmp_path / "seen").read_text().split())
    assert {"PLINTH_PIN", "PLINTH_KEY_PROMOTER", "PLINTH_PROXY_SECRET", "PLINTH_TRUST"}.isdisjoint(seen)
    assert "MY_TOKEN" in seen  # the operator's own variables are the client's business
    assert os.environ["PLINTH_PIN"] == "secret"  # the process itself still signs


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_warning_of_the_program_is_shown_and_publishes(workspace: Path, tmp_path: Path) -> None:
    defs = project(workspace, tmp_path, own_program(tmp_path, "warns"), (CHECK,))
    with dg.DagsterInstance.ephemeral() as instance:
        made, again = materialize(defs, instance), materialize(defs, instance)
    with dg.DagsterInstance.ephemeral() as other:
        unknown = materialize(defs, other)
    assert [one.success for one in (made, again, unknown)] == [True] * 3
    assert not checked(made)[CHECK][0]
    assert not checked(again)[CHECK][0]
    assert not checked(unknown)[CHECK][0]


def test_a_client_for_an_annotator_that_the_recipe_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no annotator charcters"):
        definitions.build(recipes.load(RECIPE), tmp_path, pipes={"charcters": PipesAnnotator(client="x")})


def test_a_missing_client_is_named_by_dagster(workspace: Path, tmp_path: Path) -> None:
    recipe = recipes.load(variant(tmp_path, "corpus: {annotate: {characters: {}}}\n"))
    defs = definitions.build(recipe, workspace, pipes={"characters": PipesAnnotator(client="other_process")})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="other_process"):
        dg.Definitions.validate_loadable(defs)
