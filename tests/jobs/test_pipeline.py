"""The whole pipeline on the tiny recipe: its results, made once, and their proof."""

import getpass
import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.trust import dsse
from plinth_assets.framework import Decision
from plinth_jobs import pipeline
from plinth_registry.mlflow.server import stop_server
from tests import command_lines, tiny_corpus
from tests.golden import commands
from tests.golden import data as golden_data
from tests.golden.recorded import compare
from tests.jobs import conftest
from tests.jobs.conftest import digests, here
from tests.shared import copied

pytestmark = pytest.mark.slow

answer = partial(conftest.answer, run=here)


def test_golden_versions_of_the_tiny_recipe(released):
    golden_data.require_versions(released)


@pytest.fixture
def copy(released, tmp_path, own_trust):
    """A copy of the release that a test may change."""
    workspace = copied(released, tmp_path / "workspace")
    yield workspace
    stop_server(Workspace(workspace))


def test_golden_commands_answer_with_the_same_keys(copy, tmp_path):
    compare("commands", commands.shapes(commands.CALLS, copy, tmp_path, here))


@pytest.mark.exhaustive
def test_golden_model_commands_answer_with_the_same_keys(copy, tmp_path):
    compare("model_commands", commands.shapes(commands.MODEL_CALLS, copy, tmp_path, here))


#: Commands of pages that only read; of a workspace of the tiny recipe they ask things that it has, or has not.
READING = re.compile(
    r"plinth (status|doctor|corpus (funnel|card|sample|near|review summary)|tokens \w+|recipe (check|show|schema)"
    r"|run (goodput|history|show|batch|checkpoint (list|verify)|job status|plan)|keys show"
    r"|model (evaluation|probes (list|explain))"
    r"|gates (show|verdict|check default)|release (log|consumer list|papers --show|impact web)"
    r"|verify (champion|release)$"
    r"|ops (gc|gc pins|sli|cost (show|limits|corpus)|alerts list|metrics list|gameday list|check list))\b"
)
_ELSEWHERE = re.compile(
    rf"\b[A-Z]{{3,}}\b|…|{command_lines.FILLED}|\.(yaml|txt|jsonl|csv)|export|--(out|write|delete|reason|at|gate)\b"
)


@pytest.mark.exhaustive
def test_commands_of_the_pages_that_only_read_answer_on_a_released_workspace(copy):
    """Each command answers or names what is missing; none reports wrong usage or an internal error."""
    text = [re.sub(r"\n> ?", "\n", path.read_text()) for path in (conftest.ROOT / "docs").glob("*.md")]
    lines = {re.sub(r" -[wr] \S+", "", line) for page in text for line in command_lines.in_blocks(page)}
    lines = {line for line in lines if READING.match(line) and not _ELSEWHERE.search(line)}
    ran = {line: here(copy, "-r", conftest.RECIPE, *shlex.split(line)[1:]) for line in sorted(lines)}
    assert len(ran) > 35
    assert {line: one.stderr for line, one in ran.items() if one.returncode == 70 or "Usage:" in one.stderr} == {}
    others = {line: one.stderr for line, one in ran.items() if one.returncode}
    assert len(others) < 0.2 * len(ran), others


def test_it_ends_in_a_release_and_a_page(released):
    summary = answer(released, "run")
    assert summary["done"] == []
    assert summary["release"]["release"] == "tiny version 1"
    assert summary["release"]["alias"] == "champion"
    page = (released / "reports" / "tiny-candidate-1.html").read_text()
    for words in ("passed; 14 gates", "champion", "bit-identical", "<svg"):
        assert words in page


def test_it_finds_what_was_planted(released):
    assert answer(released, "card")["toxicity"] == "not screened"
    total = answer(released, "funnel")["total"]
    reasons = {}
    for stage in total["stages"]:
        for reason, found in stage["reasons"].items():
            reasons[reason] = found["documents"]
    planted = tiny_corpus.PLANTED
    assert reasons["licence"] == planted["gpl"] + planted["unknown"]
    assert reasons["language"] == planted["german"]
    assert reasons["exact_duplicate"] == planted["exact_duplicates"]
    assert total["edits"]["reasons"]["pii"]["edits"] == planted["email"]
    left = Context(Workspace(released)).refs.current("pii/data").stats
    assert (left["found"], left["buckets"].keys()) == (0, {"web", "prose", "code"})
    assert total["edits"]["reasons"]["contaminated"]["edits"] > 0  # phrases that held-out documents share
    assert reasons["near_duplicate"] >= planted["near_duplicates"]


def test_nothing_is_lost_on_the_way(released):
    for account in answer(released, "funnel")["buckets"].values():
        for row, after in zip(account["stages"], account["stages"][1:], strict=False):
            assert row["documents_in"] - row["removed"] == row["documents_out"] == after["documents_in"]


def test_every_asset_is_up_to_date_afterwards(released):
    assert {row["state"] for row in answer(released, "status")} == {"up to date"}


def test_no_unpermitted_licence_reaches_the_curated_text(released):
    from plinth.compute.context import Context
    from plinth.corpus.curate import contaminated, licences
    from plinth.storage.workspace import Workspace

    ctx = Context(Workspace(released))
    buckets = ("web", "prose", "code")
    curated = {bucket: ctx.refs.current(f"{bucket}/curated") for bucket in buckets}
    verdicts = {bucket: ctx.refs.current(f"{bucket}/verdicts") for bucket in buckets}
    assert set(licences(ctx.store, curated)) <= {"CC0-1.0", "MIT", "Apache-2.0", "BSD-3-Clause", "ISC"}
    assert contaminated(ctx.store, verdicts, ctx.refs.current("contamination")) == 0


def test_a_document_is_explained_to_the_steps_that_saw_it(released):
    batch = answer(released, "batch", "latest", 1)
    row = batch["rows"][0] if "rows" in batch else batch["sequences"][0]["documents"][0]
    trace = answer(released, "explain", row["uri"])
    text = json.dumps(trace)
    assert row["uri"] in text
    assert "champion" in text or "steps" in text
    assert "gopher_quality" in text


@pytest.mark.exhaustive
def test_slices_of_the_evaluation_add_up_and_lead_to_documents(released):
    found = answer(released, "evaluation")
    axes = {"bucket": found["slices"], **found["axes"]}
    assert set(axes) == {"bucket", "language", "domain", "length", "copied", "licence"}
    for rows in axes.values():
        for name in ("bits", "bytes", "documents", "tokens"):
            assert sum(row[name] for row in rows.values()) == found["overall"][name]
        assert all(row["low"] <= row["model"] <= row["high"] and row["n"] for row in rows.values())
    assert set(axes["copied"]) <= {"yes", "no"}
    assert set(axes["domain"]) == {"web.example", "prose.example", "code.example"}
    assert sum(row["bits"] for row in found["positions"]["all"]) == found["overall"]["bits"]
    worst = found["worst"][0]
    trace = answer(released, "explain", worst["id"])
    assert (trace["status"], trace["uri"], trace["bucket"]) == ("heldout", worst["uri"], worst["bucket"])
    shown = here(released, "model", "evaluation", "licence", "--worst", 1).stdout
    assert f"plinth explain {worst['id']}" in shown
    assert "MIT" in shown
    assert "language" not in shown
    same = answer(released, "evaluation", "--against", found["digest"][:12], "--spans", 3)
    assert [one["difference"] for one in same] == [0.0] * 3
    unknown = here(released, "model", "evaluation", "licenze")
    assert (unknown.returncode, "one of bucket" in unknown.stderr) == (3, True)


@pytest.mark.parametrize(
    "target", ["champion", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("tiny@champion", "candidate"))]
)
def test_a_release_is_proved_down_to_its_sources(released, target):
    assert here(released, "verify", target).returncode == 0


def test_whoever_asked_for_the_run_stands_in_the_signed_facts(released):
    (path,) = (released / "models").glob("*.evidence.json")
    facts = dsse.unverified(dsse.envelope_of(path), "facts")["predicate"]["facts"]
    assert facts["requested_by"] == getpass.getuser()


def test_tampering_is_found_and_named(released):
    (directory,) = (released / "models").glob("*/model.safetensors")
    kept = directory.read_bytes()
    directory.chmod(0o644)
    try:
        directory.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        done = here(released, "verify", "champion")
        assert done.returncode == 8
        assert "model.safetensors" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        directory.write_bytes(kept)


def test_a_changed_blob_names_the_link_that_breaks(released):
    manifest = json.loads((released / "manifests" / f"{digests(released)['web/curated']}.json").read_bytes())
    md5 = manifest["parts"][0]["blob"]["md5"]
    blob = released / "store" / "files" / "md5" / md5[:2] / md5[2:]
    kept = blob.read_bytes()
    blob.chmod(0o644)
    try:
        blob.write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
        done = here(released, "verify", "champion")
        assert done.returncode == 8
        assert "web/curated" in done.stderr
    finally:
        blob.write_bytes(kept)


def test_shards_are_pulled_with_plain_dvc(released, tmp_path):
    assert here(released, "export", tmp_path / "shards", "web/shards", "code/shards").returncode == 0
    dvc = Path(sys.executable).with_name("dvc")
    done = subprocess.run([dvc, "pull"], cwd=tmp_path / "shards", capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "shards").rglob("shard-*.bin"))


def test_a_manifest_is_restored(released, tmp_path):
    assert here(released, "export", "restore", digests(released)["code/shards"][:16], tmp_path / "back").returncode == 0
    assert (tmp_path / "back" / "shard-00000.bin").stat().st_size > 0


def test_dagster_has_recorded_checks_metadata_and_data_versions(released):
    import dagster as dg

    with dg.DagsterInstance.from_config(str(released / "dagster")) as instance:
        for asset, digest in digests(released).items():
            event = instance.get_latest_materialization_event(dg.AssetKey(asset.split("/")))
            assert event is not None, asset
            materialization = event.dagster_event.step_materialization_data.materialization
            assert materialization.tags["dagster/data_version"] == digest
            assert materialization.metadata["data_version"].value == digest


def test_great_expectations_is_imported_while_dagster_is(tmp_path, monkeypatch):
    begun, at_start = list[str](), list[bool]()
    monkeypatch.setattr(pipeline.data_docs, "begin", lambda: begun.append("begun"))
    monkeypatch.setattr(pipeline, "_execute", lambda *_: at_start.append(bool(begun)) or ())
    tiny_corpus.write(tmp_path / "input")
    pipeline.run(tmp_path, conftest.RECIPE, ("web/sources",))
    assert at_start == [True]
    begun.clear()
    monkeypatch.setattr(pipeline, "decide", lambda *_: Decision(stale=(), fresh=("web/sources",)))
    pipeline.run(tmp_path, conftest.RECIPE, ("web/sources",))
    assert (begun, at_start) == ([], [True])  # nothing is made
