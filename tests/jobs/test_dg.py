"""A recipe in a team's own Dagster project: the component, the reader of rows, and a new project."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError, RecipeError, RequestError
from plinth.storage.listing import listing
from plinth.storage.workspace import Workspace
from plinth.tokens.shards.reader import open_streams
from plinth_assets.framework.arrow_reader import ArrowReader, dataset, rows_of
from plinth_jobs import definitions, project, recipes
from plinth_jobs.dg import RecipeComponent
from plinth_jobs.instance import interruptible
from tests.jobs.conftest import RECIPE, copied

TYPE = "plinth_jobs.dg.RecipeComponent"


def attributes(workspace: Path, **further: Any) -> dict[str, Any]:
    return {"type": TYPE, "attributes": {"recipe": str(RECIPE), "workspace": str(workspace), **further}}


def test_a_project_has_the_assets_of_the_recipe_next_to_its_own(tmp_path: Path) -> None:
    @dg.asset
    def crawl() -> int:
        return 1

    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(
            component_cls=RecipeComponent,
            defs_yaml_contents=attributes(tmp_path / "workspace", upstream={"web": ["crawl"]}),
        )
        with sandbox.load_component_and_build_defs(defs_path=folder) as (component, defs):
            assert isinstance(component, RecipeComponent)
            merged = dg.Definitions.merge(defs, dg.Definitions(assets=[crawl], executor=dg.in_process_executor))
            dg.Definitions.validate_loadable(merged)
            graph = merged.resolve_asset_graph()
    assert {"crawl", "web/documents", "candidate"} <= {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert graph.get(dg.AssetKey(["web", "sources"])).parent_keys == {dg.AssetKey("crawl")}
    assert graph.get(dg.AssetKey(["web", "sources"])).automation_condition is not None
    assert not graph.get(dg.AssetKey(["prose", "sources"])).parent_keys


def test_upstream_of_a_bucket_that_the_recipe_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no bucket wbe") as refused:
        definitions.build(recipes.load(RECIPE), tmp_path, upstream={"wbe": ["crawl"]})
    assert "web" in str(refused.value.expected)


def test_scaffolding_writes_a_recipe_that_loads(tmp_path: Path) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=RecipeComponent)
        found, problems = recipes.check(folder / "recipe.yaml")
        assert found is not None, problems
        with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
            keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert "documents/curated" in keys


@pytest.fixture
def corpus(pending: Path) -> Path:
    """The whole pipeline, which other modules need too, serves as well as its first half."""
    return pending


def materialized(corpus: Path, key: list[str]) -> Any:
    """Return what a downstream asset gets for an input, through Dagster."""
    got: dict[str, Any] = {}

    @dg.asset(ins={"rows": dg.AssetIn(key)})
    def downstream(rows: ds.Dataset) -> None:
        got["rows"] = rows

    defs = definitions.build(recipes.load(RECIPE), corpus)
    with interruptible():
        made = dg.materialize(
            [downstream, *(one for one in defs.assets or () if dg.AssetKey(key) in one.keys)],
            selection=[downstream],
            resources=defs.resources,
        )
    (read,) = (event for event in made.get_asset_observation_events())
    assert read.asset_observation_data.asset_observation.metadata["rows"].value
    return got["rows"]


def test_a_downstream_asset_reads_curated_text(corpus: Path) -> None:
    rows = materialized(corpus, ["prose", "curated"])
    manifest = Context(Workspace(corpus)).refs.current("prose/curated")
    store = Context(Workspace(corpus)).store
    expected = pa.concat_tables(pq.read_table(store.path(part.blob)) for part in manifest.named("part-"))
    assert rows.to_table().equals(expected)
    assert rows.count_rows() == expected.num_rows
    short = rows.to_table(columns=["uri"], filter=pc.field("uri") == expected["uri"][0])
    assert short.num_rows == 1
    assert pickle.loads(pickle.dumps(rows)).count_rows() == expected.num_rows


def test_shards_are_rows_of_tokens(corpus: Path) -> None:
    ctx = Context(Workspace(corpus))
    manifest = ctx.refs.current("web/shards")
    rows = rows_of(ctx.store, manifest)
    assert isinstance(rows, pa.RecordBatchReader)  # nothing is read yet
    table = rows.read_all()
    assert rows.read_all().num_rows == 0
    (reader,) = open_streams(ctx.store, [manifest]).values()
    assert table.num_rows == reader.documents_count
    assert set(table["stream"].to_pylist()) == {reader.stream.name}
    assert table["tokens"].combine_chunks().flatten().to_numpy().tolist() == reader.read(0, reader.tokens).tolist()
    first = next(reader.index.batches()).records()[0]
    assert table["id"][0].as_py().hex() == first.id
    assert len(table["tokens"][0].as_py()) == first.tokens


def test_a_changed_file_is_not_read(corpus: Path, tmp_path: Path) -> None:
    workspace = copied(corpus, tmp_path / "workspace")
    ctx = Context(Workspace(workspace))
    manifest = ctx.refs.current("prose/curated")
    path = ctx.store.path(manifest.parts[0].blob)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    with pytest.raises((PlinthError, OSError), match=r"SHA-256|differ|changed"):
        dataset(ctx.store, manifest).to_table()


def test_an_asset_without_rows_is_refused(corpus: Path) -> None:
    ctx = Context(Workspace(corpus))
    with pytest.raises(MissingError, match="has no rows to read"):
        dataset(ctx.store, ctx.refs.current("tokenizer"))


def test_the_reader_cannot_write(tmp_path: Path) -> None:
    @dg.asset(io_manager_key="reader")
    def own() -> int:
        return 1

    with interruptible():
        made = dg.materialize([own], resources={"reader": ArrowReader(workspace=str(tmp_path))}, raise_on_error=False)
    assert not made.success
    assert "can only read" in str(made.failure_data_for_node("own"))


def data_folder(root: Path) -> Path:
    """A folder with four kinds of files, compressed or not, and some that no reader knows."""
    for name in ("web", "notes", "notes/.git"):
        (root / name).mkdir(parents=True)
    (root / "web" / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({"n": 1, "content": "words"}).encode()))
    pq.write_table(pa.table({"id": ["x"], "body": ["a longer text"]}), root / "web" / "b.parquet")
    (root / "notes" / "a.MD").write_text("# words")
    (root / "notes" / "tool.py").write_text("print(1)")
    (root / "notes" / "picture.png").write_bytes(b"\x89PNG")
    (root / "notes" / ".git" / "config.txt").write_text("no document")
    (root / "paper.tex").write_text("\\section{One}")
    return root


def test_a_new_project_finds_its_sources_and_is_valid(tmp_path: Path) -> None:
    sources, unread = project.look(data_folder(tmp_path / "Data 1"))
    assert unread == {".png": 1}
    assert [(one.bucket, one.kind, one.files, one.suffixes, one.text_field) for one in sources] == [
        ("notes", "text", 1, (".md",), ""),
        ("notes_code", "tree", 1, (".py",), ""),
        ("data_1", "latex", 1, (), ""),
        ("web", "jsonl", 1, (), "content"),
        ("web", "parquet", 1, (), "body"),
    ]
    project.write(tmp_path / "mine", project.files("mine", sources, "MIT", "corpus@example.org"))
    found, problems = recipes.check(tmp_path / "mine" / "recipe.yaml")
    assert found is not None, problems
    assert list(found.corpus.buckets) == ["notes", "notes_code", "data_1", "web"]
    assert found.corpus.buckets["notes_code"].policy == "code"
    with pytest.raises(RequestError, match=r"already contains files"):
        project.write(tmp_path / "mine", project.files("mine", sources, "MIT", "corpus@example.org"))


def test_each_subfolder_is_a_bucket_and_no_file_is_read_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("Web/a.txt", "web/b.txt", "Größe & Maß/c.txt", "日本/d.txt", "中国/e.txt", "top.txt", "top.MD"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    sources, _ = project.look(data)
    buckets = {Path(one.path).name: one.bucket for one in sources}
    assert buckets == {
        "Web": "web", "web": "web_2", "Größe & Maß": "grosse_mass", "中国": "bucket", "日本": "bucket_2",
        "*.txt": "data", "*.MD": "data",
    }  # fmt: skip
    read = [one[0] for found in sources for one in listing(found.path, tmp_path, found.suffixes)]
    assert sorted(read) == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt", "top.MD", "top.txt"]


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(MissingError, match="no documents") as refused:
        project.look(tmp_path)
    assert refused.value.found == "1 .png"


@pytest.mark.parametrize("name", ["9lives", "a b", "x-candidate"])
def test_a_name_that_no_recipe_can_have_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name"):
        project.name_of(Path(name))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_dagsters_own_command_creates_checks_and_runs_it(tmp_path: Path) -> None:
    """`plinth init`, then only `dg`: scaffold, check, list, launch an asset of the team's own with its upstream."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    paths = os.pathsep.join([str(tmp_path / "mine" / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": paths}
    tools = Path(sys.executable).parent

    def run(*words: str, at: Path) -> str:
        command = [str(tools / words[0]), *words[1:]]
        ran = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    data = tmp_path / "data"
    data.mkdir()
    for n in range(3):
        (data / f"{n}.txt").write_text("The old bridge over the river was repaired in spring. " * 20 + str(n))
    run("plinth", "init", "mine", "--data", str(data), "--licence", "MIT", at=tmp_path)
    folder = tmp_path / "mine"
    (folder / "src" / "mine" / "defs" / "counts.py").write_text(
        "import dagster as dg\nimport pyarrow.dataset as ds\n\n\n"
        '@dg.asset(ins={"text": dg.AssetIn(["data", "documents"])})\n'
        "def rows(text: ds.Dataset) -> int:\n    return text.count_rows()\n"
    )
    run("dg", "scaffold", "defs", TYPE, "second", "--recipe", "tiny", at=folder)
    assert (folder / "src" / "mine" / "defs" / "second" / "defs.yaml").read_text().count("recipe: tiny") == 1
    shutil.rmtree(folder / "src" / "mine" / "defs" / "second")
    run("dg", "check", "yaml", at=folder)
    run("dg", "check", "defs", at=folder)
    listed = json.loads(run("dg", "list", "defs", "--json", at=folder))
    assert {"rows", "data/documents", "data/curated"} <= {one["asset_key"] for one in listed["assets"]}
    run("dg", "launch", "--assets", "+key:rows", at=folder)
    run("dg", "launch", "--assets", "+key:rows", at=folder)
    assert Context(Workspace(folder / "workspace")).refs.current("data/documents").rows == 3
