"""Events of a real Dagster run, received over HTTP, and read back into the classes of OpenLineage's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from openlineage.client import event_v2, facet_v2

from plinth.compute.context import Context, TaskShare, manifest
from plinth.operation import asset_listeners
from plinth.operation.asset_listeners import AssetUpdate, announced
from plinth.records import Manifest, Part, Step
from plinth.storage.workspace import Workspace
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, data_docs
from plinth_extras import openlineage_export
from tests.plinth_extras.materialized import materialize

COLUMNS = pa.schema([("id", pa.binary(16)), ("text", pa.string())])
#: Classes of facets by the URL of their schema.
FACETS = {
    kind._get_schema(): kind
    for module in vars(facet_v2).values()
    for kind in getattr(module, "__dict__", {}).values()
    if isinstance(kind, type) and issubclass(kind, facet_v2.BaseFacet) and kind is not facet_v2.BaseFacet
}


class Server:
    def __init__(self) -> None:
        self.events, self.url, self.status = list[dict[str, Any]](), "", 200


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if found.status == 200:
                found.events.append(data)
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{http.server_port}"
    yield found
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without settings, and no Data Docs."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(data_docs, "file", lambda *_: None)
    yield tmp_path / "home"
    asset_listeners.finish()


@pytest.fixture
def settings(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that sends events to the server, named by the environment."""
    path = tmp_path / "lineage.yml"
    path.write_text(
        f"transport: {{type: http, url: '{server.url}', timeout: 2, retry: {{total: 0}}}}\n"
        "facets: {source_code_location: {disabled: true}}\n"
    )
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(path))
    return path


def stage(name: str, deps: tuple[str, ...] = (), *, least: int = 0) -> Stage:
    def make(ctx: Context, inputs: Inputs, say: Say) -> Manifest:
        part = Part(name="part-00000.parquet", blob=ctx.store.put_bytes(name.encode()), rows=3)
        return manifest(name, Step(name="probe", version="1"), inputs, [part], {"n": 1})

    def suite(made: Manifest, inputs: Inputs) -> Suite:
        return Suite(name, [{"n": made.stats["n"]}], [between("n", least, None)])

    return Stage(
        asset=name, deps=deps, make=make, version="7", params={}, group="probe", description="A probe.",
        owner="someone@example.org", suite=suite, schema=COLUMNS,
    )  # fmt: skip


def facets(raw: dict[str, Any]) -> dict[str, Any]:
    """Read facets into the client's classes; fields that a class does not know are an error."""
    found = {}
    for name, facet in raw.items():
        fields = {key: value for key, value in facet.items() if key not in ("_producer", "_schemaURL", "_deleted")}
        assert facet["_producer"].startswith("urn:plinth:")
        found[name] = FACETS[facet["_schemaURL"]](**fields)
    return found


def parsed(raw: dict[str, Any]) -> event_v2.RunEvent:
    def dataset(one: dict[str, Any], side: str, kind: type[Any]) -> Any:
        own = {side: facets(one.get(side, {}))}
        return kind(one["namespace"], one["name"], facets=facets(one["facets"]), **own)

    return event_v2.RunEvent(
        eventType=event_v2.RunState[raw["eventType"]],
        eventTime=raw["eventTime"],
        run=event_v2.Run(raw["run"]["runId"], facets(raw["run"]["facets"])),
        job=event_v2.Job(raw["job"]["namespace"], raw["job"]["name"], facets(raw["job"]["facets"])),
        inputs=[dataset(one, "inputFacets", event_v2.InputDataset) for one in raw["inputs"]],
        outputs=[dataset(one, "outputFacets", event_v2.OutputDataset) for one in raw["outputs"]],
        producer=raw["producer"],
    )


def test_each_publication_has_a_start_and_an_end(tmp_path: Path, server: Server, settings: Path) -> None:
    session, dagster_run = materialize(tmp_path / "w", [stage("web/one"), stage("two", ("web/one",), least=0)])
    assert (session.failures, session.warnings) == ([], [])
    events = [parsed(one) for one in server.events]
    kinds = [(one.job.name, one.eventType.value) for one in events]
    assert kinds == [("web/one", "START"), ("web/one", "COMPLETE"), ("two", "START"), ("two", "COMPLETE")]
    assert len({one.run.runId for one in events}) == 2
    assert events[2].run.runId == events[3].run.runId
    assert events[2].eventTime < events[3].eventTime
    assert UUID(events[3].run.facets["parent"].run["runId"]) == UUID(dagster_run)
    assert {tag["key"]: tag["value"] for tag in events[3].job.facets["tags"].tags} == {
        "recipe": "tiny", "code_version": stage("two").code_version
    }  # fmt: skip
    refs = Context(Workspace(tmp_path / "w")).refs
    place = (tmp_path / "w").resolve().as_uri()
    (read,), (written,) = events[3].inputs, events[3].outputs
    assert (read.namespace, read.name) == (place, "web/one")
    assert read.facets["version"].datasetVersion == refs.ref("web/one").digest
    assert read.inputFacets["inputStatistics"].rowCount == 3
    assert (written.namespace, written.name) == (place, "two")
    assert written.facets["version"].datasetVersion == refs.ref("two").digest
    assert [(one["name"], one["type"]) for one in written.facets["schema"].fields] == [
        ("id", "fixed_size_binary[16]"), ("text", "string")
    ]  # fmt: skip
    found = written.outputFacets["outputStatistics"]
    assert (found.rowCount, found.size, found.fileCount) == (3, len("two"), 1)
    assert events[2].outputs == []


def test_blocked_checks_fail_and_have_no_output(tmp_path: Path, server: Server, settings: Path) -> None:
    materialize(tmp_path / "w", [stage("one"), stage("bad", ("one",), least=9), stage("never", ("bad",))])
    events = [parsed(one) for one in server.events]
    assert [(one.job.name, one.eventType.value) for one in events[2:]] == [("bad", "START"), ("bad", "FAIL")]
    assert [one.name for one in events[3].inputs] == ["one"]
    assert events[3].outputs == []
    assert "bad failed its checks and was not published" in events[3].run.facets["errorMessage"].message


def test_a_server_that_is_away_changes_nothing(tmp_path: Path, server: Server, settings: Path) -> None:
    server.status = 500
    session, _ = materialize(tmp_path / "w", [stage("one")])
    (said,) = session.warnings
    assert said.startswith("openlineage missed 2 updates of assets: ")
    assert Context(Workspace(tmp_path / "w")).refs.ref("one") is not None


def test_nothing_is_sent_unless_it_is_configured(
    tmp_path: Path, home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not openlineage_export.configured()
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "team")  # where to is not said
    materialize(tmp_path / "w", [stage("one")])
    assert server.events == []
    assert asset_listeners._current == {}
    for name, value in (("OPENLINEAGE_URL", server.url), ("OPENLINEAGE__TRANSPORT__TYPE", "http")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert openlineage_export.configured()
            patch.setenv("OPENLINEAGE_DISABLED", "true")
            assert not openlineage_export.configured()
    (home / ".openlineage").mkdir(parents=True)
    (home / ".openlineage" / "openlineage.yml").write_text("transport: {type: noop}\n")
    assert openlineage_export.configured()


def test_settings_in_the_working_directory_are_ignored(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openlineage.yml").write_text("transport: {type: file, log_file_path: stolen}\n")
    assert not openlineage_export.configured()
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
    with announced(Context(Workspace(tmp_path / "w").ensure()), AssetUpdate("one", "file:///w", "1")):
        pass
    assert asset_listeners.finish() == []
    assert len(server.events) == 2
    assert not list(tmp_path.glob("stolen*"))


def test_arms_and_shares_of_a_run_are_not_told(tmp_path: Path, server: Server, settings: Path) -> None:
    space = Workspace(tmp_path / "w").ensure()
    for ctx in (Context(space, share=TaskShare(0, 2)), Context(space.branch("arm"))):
        with announced(ctx, AssetUpdate("one", "file:///w", "1")):
            pass
    assert asset_listeners.finish() == []
    assert server.events == []


def test_hostile_names_are_data(tmp_path: Path, server: Server, settings: Path) -> None:
    ctx = Context(Workspace(tmp_path / "w").ensure(), recipe='a"b\n{}', run="not a uuid")
    update = AssetUpdate("web/\u202e<script>", "file:///w", "1")
    with pytest.raises(RuntimeError), announced(ctx, update):
        raise RuntimeError("\x00 \U0001f4a5")
    assert asset_listeners.finish() == []
    start, end = (parsed(one) for one in server.events)
    assert (start.job.name, end.eventType.value) == ("web/\u202e<script>", "FAIL")
    assert end.run.facets["errorMessage"].message == "\x00 \U0001f4a5"
    assert "parent" not in end.run.facets
