"""From a checkpoint to a champion and back, against a real MLflow server and with real signatures."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, MissingError, SignatureError, TrustError
from plinth.storage.workspace import Workspace
from plinth_audit.papers import signed
from plinth_audit.papers.facts import ROLLED_BACK
from plinth_audit.papers.signed import subject_of
from plinth_jobs.cli import call as command_line
from plinth_registry import (
    api,
    audit_log,
    consumers,
    decisions,
    freeze,
    policy,
    promotion,
    registration,
    releases,
    signing,
    verified,
)
from plinth_registry import signing as directories
from plinth_registry.candidate import evidence_path
from plinth_registry.exports.models import UNRELEASED
from plinth_registry.mlflow import connection, server
from plinth_registry.mlflow.server import DATABASE
from plinth_registry.releases import ReleaseRecord
from tests.registry.conftest import small_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlflow_uri")]

ADA, BEN = "ada@example.org", "ben@example.org"


@pytest.fixture
def mlflow(ctx: Context, mlflow_uri: str) -> Any:
    return connection.connect(ctx.workspace)


def released(mlflow: Any, line: Any) -> bool:
    """True if MLflow shows a champion."""
    model = connection.optional(lambda: mlflow.get_registered_model(line.recipe.release.name))
    return model is not None and "champion" in model.aliases


def register(ctx: Context, line: Any, **facts: object) -> tuple[Any, dict[str, Any]]:
    found, gates = api.register_candidate(
        ctx,
        line.recipe,
        line.checkpoint,
        line.evaluation,
        line.run,
        line.facts(**facts),
        materials=line.materials,
    )
    return found, {gate.name: gate for gate in gates}


def release(ctx: Context, line: Any) -> ReleaseRecord:
    """Register, approve and promote."""
    found, _ = register(ctx, line)
    decisions.approve(ctx, line.recipe, found.version, ADA, "good")
    (record,) = api.promote_if_approved(ctx, line.recipe)
    return record


def aliases(mlflow: Any, line: Any) -> dict[str, str]:
    return {
        name: str(version) for name, version in mlflow.get_registered_model(line.recipe.release.name).aliases.items()
    }


def flip(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def artifact(mlflow: Any, version: Any, name: str) -> Any:
    """A JSON artifact of a version's run."""
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(Path(mlflow.download_artifacts(version.run_id, name, folder)).read_bytes())


# Candidates


def test_a_candidate_carries_its_lineage_and_scores(ctx: Context, line: Any, mlflow: Any) -> None:
    found, gates = register(ctx, line)
    version = mlflow.get_model_version(found.model, found.version)
    assert version.name == f"{line.recipe.release.name}-candidate"
    assert version.source == f"plinth:///models/{line.checkpoint.digest[:12]}"
    assert version.tags["checkpoint"] == line.checkpoint.digest
    assert version.tags["evaluation"] == line.evaluation.digest
    lineage = artifact(mlflow, version, f"lineage-{version.tags['candidate'][:12]}.json")
    assert lineage["data"]["web/curated"] == line.curated.digest
    assert lineage["sources"] == {"web/documents:web/sources": fingerprint.digest("inventory")}
    assets = {"web/documents", "web/curated", "tokenizer", "web/shards", "mixture", "run", "checkpoint"}
    assert set(lineage["data"]) == assets
    evidence = artifact(mlflow, version, f"gates-{version.name}-{version.version}.json")["gates"]
    assert {one["name"] for one in evidence} == set(gates)
    assert max(len(value) for value in version.tags.values()) < 500  # a tag is a line
    assert not [key for key in version.tags if key.startswith(("data/", "source/"))]
    experiment = mlflow.get_experiment_by_name(line.recipe.name)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    run = mlflow.get_run(version.run_id)
    shown = {(one.dataset.name, one.dataset.digest, one.tags[0].value) for one in run.inputs.dataset_inputs}
    assert ("web/shards", lineage["data"]["web/shards"][:36], "training") in shown
    assert ("web/curated", line.curated.digest[:36], "evaluation") in shown
    assert run.data.metrics == {
        "bits_per_byte/web/model": 2.0,
        "bits_per_byte/web/gzip": 3.5,
        "bits_per_byte/web/trigram": 2.5,
        "cost/wall_s": 9.0,
    }
    assert [name for name, gate in gates.items() if not gate.passed] == ["approvals"]
    assert version.tags["run"] == line.run.id


def test_a_candidate_has_papers_before_it_is_released(
    ctx: Context, line: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found, _ = register(ctx, line)
    assert decisions.find_candidate(ctx, line.recipe, "1") == decisions.find_candidate(ctx, line.recipe, None) == found
    made = signed.make(ctx, subject_of(ctx, found, f"{found.model}/{found.version}"))
    assert made.checkpoint == line.checkpoint.digest
    card = made.files["README.md"].decode()
    assert f"# Model card: {line.recipe.release.name}-candidate/1" in card
    assert f"**{UNRELEASED}**: no signed history released this model." in card
    given = line.recipe.model_dump(mode="json", exclude_unset=True)
    given["corpus"]["annotate"] = {"language": {}, "licence": {}}  # a file without them is refused
    (tmp_path / "recipe.yaml").write_text(json.dumps(given))
    of = ["-w", str(ctx.workspace.root), "-r", str(tmp_path / "recipe.yaml"), "--json"]
    assert command_line(["release", "papers", "candidate", "--sign", *of]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["released"], shown["signed_by"], shown["papers"]) == (False, ["compliance"], made.digests)
    assert signed.signed_by(ctx, made) == ("compliance",)
    flip(found.directory / "model.safetensors")
    with pytest.raises(SignatureError, match=r"the signature of .* is invalid"):
        decisions.find_candidate(ctx, line.recipe, "1")


def test_the_model_card_is_the_description_of_candidate_and_release(ctx: Context, line: Any, mlflow: Any) -> None:
    found, _ = register(ctx, line)
    before = mlflow.get_model_version(found.model, "1").description
    assert f"# Model card: {found.model}/1\n\n**{UNRELEASED}**: " in before
    record = release(ctx, line)
    name, path = record.model, f"model-card-{record.model}-1.md"
    version = mlflow.get_model_version(name, "1")
    assert f"The full model card is `{path}` among the artifacts" in version.description
    parts = [version.description.index(part) for part in ("## Gates", "## Scores", f"# Model card: {name}/1\n")]
    assert parts == sorted(parts)
    shown = mlflow.get_model_version(f"{name}-candidate", "1").description
    assert f"# Model card: {name}/1\n" in shown
    assert UNRELEASED not in shown
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(mlflow.download_artifacts(version.run_id, path, folder)).read_text()
    found = verified.verify_release(ctx, name, "1")[0]
    assert whole == signed.papers_of_candidate(ctx, found).files["README.md"].decode()
    decisions.rollback(ctx, line.recipe, BEN, "it leaks", withdraw=True)
    assert f"**{ROLLED_BACK}**: " in mlflow.get_model_version(name, "1").description


def test_a_release_whose_candidate_was_changed_can_be_rolled_back(ctx: Context, line: Any, mlflow: Any) -> None:
    record = release(ctx, line)
    found = verified.verify_release(ctx, record.model, "1")[0]
    flip(evidence_path(found.directory, found.key))
    before = mlflow.get_model_version(record.model, "1").description
    assert decisions.rollback(ctx, line.recipe, BEN, "it was changed", withdraw=True).action == "withdrawn"
    assert mlflow.get_model_version(record.model, "1").description == before


def test_the_same_work_is_registered_once(ctx: Context, line: Any, mlflow: Any) -> None:
    first, _ = register(ctx, line)
    again, _ = register(ctx, line, requested_by="somebody else", cost={"wall_s": 11})
    assert again.version == first.version
    assert len(connection.versions(mlflow, first.model)) == 1
    version = mlflow.get_model_version(first.model, first.version)
    assert len(mlflow.get_metric_history(version.run_id, "bits_per_byte/web/model")) == 1


@pytest.mark.exhaustive
def test_other_facts_or_another_evaluation_make_another_candidate(ctx: Context, line: Any) -> None:
    first, _ = register(ctx, line)
    second, gates = register(ctx, line, contaminated_documents=3)
    line.evaluation = line.evaluate(model=2.7)
    third, worse = register(ctx, line)
    assert [first.version, second.version, third.version] == ["1", "2", "3"]
    assert not gates["contamination"].passed
    found = "bits per byte not below the byte trigram: web 2.7, limit 2.5, n 1,000 bytes"
    assert worse["beats_trigram"].reason == found


def test_a_crash_before_the_version_leaves_no_candidate_and_is_mended(
    ctx: Context, line: Any, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> dict[str, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(registration, "_tags", crash)
        with pytest.raises(KeyboardInterrupt):
            register(ctx, line)
    assert connection.versions(mlflow, f"{line.recipe.release.name}-candidate") == []
    found, _ = register(ctx, line)
    experiment = mlflow.get_experiment_by_name(line.recipe.name).experiment_id
    assert found.version == "1"
    assert len(mlflow.search_runs([experiment])) == 1
    assert len(mlflow.search_logged_models([experiment])) == 1


def test_incomplete_lineage_is_not_registered(ctx: Context, line: Any) -> None:
    (ctx.refs.manifests / f"{line.curated.digest}.json").unlink()
    with pytest.raises(LineageError, match="web/curated"):
        register(ctx, line)
    assert list(ctx.workspace.models.glob("[!.]*")) == []


def test_an_evaluation_of_another_checkpoint_is_refused(ctx: Context, make_line: Any) -> None:
    line = make_line(1)
    line.evaluation = make_line(2).evaluation
    with pytest.raises(LineageError, match="belongs to another checkpoint"):
        register(ctx, line)


def test_missing_facts_fail_their_gates(ctx: Context, line: Any) -> None:
    _, gates = register(ctx, line, contaminated_documents=None, licences=None, stability=None)
    closed = {name: gate.reason for name, gate in gates.items() if not gate.passed}
    assert set(closed) == {"contamination", "licence", "terms", "stability", "approvals"}
    assert closed["licence"] == "no evidence"


# Approval and promotion


def test_nothing_is_promoted_without_approval(ctx: Context, line: Any, mlflow: Any) -> None:
    register(ctx, line)
    (status,) = decisions.pending(ctx, line.recipe)
    assert status.waits_for_approval
    assert api.promote_if_approved(ctx, line.recipe) == ()
    with pytest.raises(GateError, match="is blocked by gates") as caught:
        decisions.promote(ctx, line.recipe, None, "ben", "in a hurry")
    assert "0 of 1 approvals" in str(caught.value)
    assert not released(mlflow, line)


def test_a_signed_approval_makes_a_champion(ctx: Context, line: Any, mlflow: Any) -> None:
    record = release(ctx, line)
    assert (record.action, record.version, record.candidate_version, record.previous) == ("champion", "1", "1", None)
    assert [decision.by for decision in record.approvals] == [ADA]
    assert set(record.gates) >= {"signature", "lineage", "beats_trigram", "approvals"}
    assert aliases(mlflow, line) == {"champion": "1"}
    assert [each.action for each in decisions.history(ctx, line.recipe)] == ["canary", "champion"]
    released = mlflow.get_model_version(line.recipe.release.name, "1")
    assert released.source == f"models:/{line.recipe.release.name}-candidate/1"
    assert decisions.pending(ctx, line.recipe) == ()


@pytest.mark.exhaustive
def test_nothing_is_printed(ctx: Context, line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    connection.connect(ctx.workspace)
    capfd.readouterr()
    release(ctx, line)
    assert capfd.readouterr() == ("", "")


@pytest.mark.exhaustive
def test_promoting_twice_is_promoting_once(ctx: Context, line: Any, mlflow: Any) -> None:
    record = release(ctx, line)
    assert api.promote_if_approved(ctx, line.recipe) == ()
    assert decisions.promote(ctx, line.recipe, "1", "ben", "again") == record
    assert len(decisions.history(ctx, line.recipe)) == 2
    assert len(connection.versions(mlflow, line.recipe.release.name)) == 1


def test_decisions_start_no_server(
    ctx: Context, line: Any, mlflow_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = register(ctx, line)
    shutil.copy(mlflow_workspace.mlflow / DATABASE, ctx.workspace.mlflow / DATABASE)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(server, "_start", lambda *_: pytest.fail("a server was started"))
    release_name, mlflow = line.recipe.release.name, connection.connect(ctx.workspace)
    decisions.approve(ctx, line.recipe, found.version, ADA, "good")
    (record,) = api.promote_if_approved(ctx, line.recipe)
    assert (record.action, record.version) == ("champion", "1")
    assert aliases(mlflow, line) == {"champion": "1"}
    version = mlflow.get_model_version(release_name, "1")
    assert version.source == f"models:/{found.model}/1"
    assert "gates.evidence" in version.tags
    assert freeze.mark_tainted(ctx, line.checkpoint.digest, BEN, "leaked personal data").gaps == ()
    assert mlflow.get_model_version(found.model, "1").description.startswith("> **TAINTED, do not use")
    assert decisions.rollback(ctx, line.recipe, BEN, "unfit", withdraw=True).version is None
    assert aliases(mlflow, line) == {}


def test_an_approval_set_in_mlflow_without_a_login_is_a_request(ctx: Context, line: Any, mlflow: Any) -> None:
    found, _ = register(ctx, line)
    mlflow.set_model_version_tag(found.model, found.version, "approval", "approved")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    assert "approval.by and approval.reason are missing" in decisions.pending(ctx, line.recipe)[0].gates[-1].reason
    page = mlflow.get_model_version(found.model, found.version)
    assert "> **Approval tags are not counted.** tag approval is set, but approval.by and" in page.description
    assert (
        f"'plinth approve {found.version} --by PERSON --reason TEXT'. MLflow authentication is disabled"
        in page.description
    )
    mlflow.set_model_version_tag(found.model, found.version, "approval.by", ADA)
    mlflow.set_model_version_tag(found.model, found.version, "approval.reason", "looks right")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    reason = decisions.pending(ctx, line.recipe)[0].gates[-1].reason
    assert f"approval not counted: {ADA} (tag, without a signed login" in reason
    page = mlflow.get_model_version(found.model, found.version)
    assert f"not counted: {ADA} (tag, without a signed login" in page.tags["approval.answer"]
    decisions.approve(ctx, line.recipe, None, ADA, "looks right")
    assert [one.version for one in decisions.ready(ctx, line.recipe)] == [found.version]
    page = mlflow.get_model_version(found.model, found.version)
    assert "approval.answer" not in page.tags
    assert "not counted.**" not in page.description


def test_a_rejection_stops_an_approved_candidate(ctx: Context, line: Any) -> None:
    found, _ = register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    decisions.approve(ctx, line.recipe, None, BEN, "it leaks", "rejected")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    with pytest.raises(GateError, match="is blocked by gates"):
        decisions.promote(ctx, line.recipe, found.version, "ada", "anyway")


def test_two_people_and_only_those_allowed(ctx: Context, make_line: Any) -> None:
    line = make_line(people=2, approvers=[ADA, BEN])
    register(ctx, line)
    with pytest.raises(GateError, match="eve may not approve"):
        decisions.approve(ctx, line.recipe, None, "eve", "me too")
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    decisions.approve(ctx, line.recipe, None, BEN, "agreed")
    assert len(api.promote_if_approved(ctx, line.recipe)) == 1


@pytest.mark.exhaustive
def test_a_canary_stays_one_until_somebody_says_more(ctx: Context, line: Any, mlflow: Any) -> None:
    register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "try it")
    assert decisions.promote(ctx, line.recipe, None, "ben", "trial", stage="canary").action == "canary"
    assert aliases(mlflow, line) == {"canary": "1"}
    assert api.promote_if_approved(ctx, line.recipe) == ()
    assert aliases(mlflow, line) == {"canary": "1"}
    assert decisions.promote(ctx, line.recipe, "1", "ben", "trial went well").action == "champion"
    assert aliases(mlflow, line) == {"champion": "1"}


@pytest.mark.parametrize("broken", [pytest.param("canary", marks=pytest.mark.exhaustive), "champion"])
def test_a_promotion_interrupted_before_its_record_is_finished_by_the_next(
    ctx: Context, line: Any, mlflow: Any, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    append = releases.append

    def crash(*args: Any, **fields: Any) -> ReleaseRecord:
        if fields["action"] == broken:
            raise KeyboardInterrupt
        return append(*args, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(releases, "append", crash)
        with pytest.raises(KeyboardInterrupt):
            api.promote_if_approved(ctx, line.recipe)
    (record,) = api.promote_if_approved(ctx, line.recipe)
    assert (record.action, record.version) == ("champion", "1")
    assert aliases(mlflow, line) == {"champion": "1"}
    assert len(connection.versions(mlflow, line.recipe.release.name)) == 1


def test_weights_are_read_only_where_people_have_approved(
    ctx: Context, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(ctx, line)
    read: list[Path] = []
    verify = signing.verify

    def counted(directory: Path, key: Any) -> dict[str, Any]:
        read.append(directory)
        return verify(directory, key)

    monkeypatch.setattr(signing, "verify", counted)
    assert decisions.ready(ctx, line.recipe) == ()
    assert read == []
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    (status,) = decisions.ready(ctx, line.recipe)
    assert (status.version, status.ready) == ("1", True)
    assert read == [directories.directory_of(ctx, line.checkpoint.digest)]


def test_an_approved_candidate_with_a_closed_gate_is_not_ready(ctx: Context, line: Any) -> None:
    register(ctx, line, licences={"proprietary": 1})
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    assert decisions.ready(ctx, line.recipe) == ()
    (status,) = decisions.pending(ctx, line.recipe)
    assert [gate.name for gate in status.gates if gate.blocks] == ["licence"]


# Tampering


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("provenance.json", "resume.json")),
    ],
)
def test_a_flipped_byte_is_refused_everywhere(ctx: Context, line: Any, mlflow: Any, name: str) -> None:
    found, _ = register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    flip(found.directory / name)
    with pytest.raises(SignatureError, match=name):
        verified.verify_model(ctx, f"{found.model}/{found.version}")
    with pytest.raises(SignatureError, match=name):
        verified.verify_model(ctx, str(found.directory))
    with pytest.raises(SignatureError, match=name):
        register(ctx, line)
    with pytest.raises(SignatureError, match=name):
        decisions.promote(ctx, line.recipe, found.version, "ben", "go")
    with pytest.raises(SignatureError, match=name):
        decisions.approve(ctx, line.recipe, found.version, BEN, "go")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    assert not released(mlflow, line)


@pytest.mark.exhaustive
def test_a_champion_that_was_changed_is_refused_at_load(ctx: Context, line: Any) -> None:
    release(ctx, line)
    target = f"{line.recipe.release.name}@champion"
    model = verified.verify_model(ctx, target, deep=True)
    assert model.checkpoint == line.checkpoint.digest
    assert (model.manifests, model.sources, model.release) == (7, 1, f"{line.recipe.release.name}/1")
    flip(model.directory / "model.safetensors")
    with pytest.raises(SignatureError, match=r"model\.safetensors"):
        verified.verify_model(ctx, target)


def test_a_changed_manifest_is_refused_at_promote_and_load(ctx: Context, line: Any) -> None:
    found, _ = register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    path = ctx.refs.manifests / f"{line.curated.digest}.json"
    path.write_text(path.read_text().replace('"version":"1"', '"version":"2"'))
    with pytest.raises(LineageError, match="web/curated"):
        decisions.promote(ctx, line.recipe, None, "ben", "go")
    with pytest.raises(LineageError, match="web/curated"):
        verified.verify_model(ctx, str(found.directory))


def test_a_changed_blob_is_found_when_looking_deep(ctx: Context, line: Any) -> None:
    found, _ = register(ctx, line)
    flip(ctx.store.path(line.curated.parts[0].blob))
    verified.verify_model(ctx, str(found.directory))
    with pytest.raises(LineageError, match="web/curated"):
        verified.verify_model(ctx, str(found.directory), deep=True)


def test_tags_are_not_believed(ctx: Context, make_line: Any, mlflow: Any) -> None:
    good, bad = make_line(1), make_line(2)
    bad.evaluation = bad.evaluate(model=9.0)
    first, _ = register(ctx, good)
    second, _ = register(ctx, bad)
    decisions.approve(ctx, bad.recipe, second.version, ADA, "mistaken")
    mlflow.set_model_version_tag(second.model, second.version, "gates", "passed")
    mlflow.set_model_version_tag(second.model, second.version, "evaluation", good.evaluation.digest)
    with pytest.raises(GateError, match="is blocked by gates"):
        decisions.promote(ctx, bad.recipe, second.version, "eve", "the tags say so")
    mlflow.set_model_version_tag(second.model, second.version, "candidate", first.key)
    with pytest.raises(SignatureError):
        decisions.promote(ctx, bad.recipe, second.version, "eve", "the tags say so")
    mlflow.set_model_version_tag(second.model, second.version, "candidate", "../../keys/trainer")
    with pytest.raises(SignatureError, match="has no candidate key"):
        decisions.promote(ctx, bad.recipe, second.version, "eve", "the tags say so")
    statuses = {status.version: status for status in decisions.pending(ctx, good.recipe)}
    assert statuses["2"].error is not None
    assert statuses["1"].waits_for_approval


def test_a_release_version_that_the_promoter_never_made_is_refused(ctx: Context, line: Any, mlflow: Any) -> None:
    found, _ = register(ctx, line)
    name = line.recipe.release.name
    mlflow.create_registered_model(name)
    mlflow.create_model_version(name, f"models:/{found.model}/{found.version}", await_creation_for=None)
    mlflow.set_registered_model_alias(name, "champion", "1")
    with pytest.raises(MissingError, match="has no champion"):
        verified.verify_model(ctx, f"{name}@champion")
    with pytest.raises(GateError, match="never released"):
        verified.verify_model(ctx, f"{name}/1")


def test_a_source_outside_the_workspace_is_refused(ctx: Context, line: Any, mlflow: Any) -> None:
    found, _ = register(ctx, line)
    tags = mlflow.get_model_version(found.model, found.version).tags
    rogue = mlflow.create_model_version(found.model, "plinth:///input/evil", tags=tags, await_creation_for=None)
    with pytest.raises(TrustError, match="not a model of this workspace"):
        decisions.promote(ctx, line.recipe, rogue.version, "eve", "trust me")


@pytest.mark.exhaustive
def test_a_model_copied_to_another_name_is_refused(ctx: Context, make_line: Any) -> None:
    one, other = make_line(1), make_line(2)
    first, _ = register(ctx, one)
    second, _ = register(ctx, other)
    for suffix in ("", ".sig", ".slsa.json"):
        source, target = (directories.directory_of(ctx, each.checkpoint) for each in (first, second))
        source, target = source.with_name(source.name + suffix), target.with_name(target.name + suffix)
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    decisions.approve(ctx, one.recipe, first.version, ADA, "good")
    with pytest.raises(LineageError, match="signed for another checkpoint"):
        decisions.approve(ctx, other.recipe, second.version, ADA, "good")


# Rollback and taint


def test_rollback_returns_to_the_version_before(ctx: Context, make_line: Any, mlflow: Any) -> None:
    lines = [make_line(seed) for seed in (1, 2, 3)]
    for line in lines:
        release(ctx, line)
    recipe = lines[0].recipe
    assert aliases(mlflow, lines[0]) == {"champion": "3", "previous": "2"}
    record = decisions.rollback(ctx, recipe, ADA, "worse in production")
    assert (record.action, record.version, record.previous) == ("rollback", "2", "3")
    assert aliases(mlflow, lines[0]) == {"champion": "2", "previous": "1"}
    assert verified.verify_model(ctx, f"{recipe.release.name}@champion").checkpoint == lines[1].checkpoint.digest
    assert api.promote_if_approved(ctx, recipe) == ()
    decisions.rollback(ctx, recipe, ADA, "that one too")
    assert aliases(mlflow, lines[0]) == {"champion": "1"}
    with pytest.raises(GateError, match="no good version before 1"):
        decisions.rollback(ctx, recipe, ADA, "and that one")
    assert decisions.rollback(ctx, recipe, ADA, "take it away", withdraw=True).action == "withdrawn"
    assert aliases(mlflow, lines[0]) == {}
    with pytest.raises(MissingError, match="no champion"):
        decisions.rollback(ctx, recipe, ADA, "what else")


@pytest.mark.exhaustive
def test_a_rollback_interrupted_before_mlflow_is_shown_by_the_next_look(
    ctx: Context, make_line: Any, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [make_line(seed) for seed in (1, 2, 3)]
    for line in lines:
        release(ctx, line)

    with monkeypatch.context() as patched:
        patched.setattr(promotion, "repair", _killed)
        with pytest.raises(KeyboardInterrupt):
            decisions.rollback(ctx, lines[0].recipe, ADA, "worse")
    assert aliases(mlflow, lines[0]) == {"champion": "3", "previous": "2"}
    name = lines[0].recipe.release.name
    assert verified.verify_model(ctx, f"{name}@champion").release == f"{name}/2"
    assert decisions.repair(ctx, lines[0].recipe) == (
        f"{name}@champion was 3, expected 2 by the signed history",
        f"{name}@previous was 2, expected 1 by the signed history",
    )
    assert aliases(mlflow, lines[0]) == {"champion": "2", "previous": "1"}
    assert len([each for each in decisions.history(ctx, lines[0].recipe) if each.action == "rollback"]) == 1


@pytest.mark.exhaustive
def test_a_canary_is_given_back_also_after_a_kill(
    ctx: Context, make_line: Any, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_line(1), make_line(2)
    release(ctx, first)
    register(ctx, second)
    decisions.approve(ctx, second.recipe, None, ADA, "try it")
    with pytest.raises(MissingError, match="no canary"):
        decisions.return_canary(ctx, first.recipe, ADA, "there is none")
    decisions.promote(ctx, second.recipe, None, "ben", "trial", stage="canary")
    assert aliases(mlflow, first) == {"champion": "1", "canary": "2"}

    with monkeypatch.context() as patched:
        patched.setattr(promotion, "repair", _killed)
        with pytest.raises(KeyboardInterrupt):
            decisions.return_canary(ctx, first.recipe, ADA, "worse on web")
    assert aliases(mlflow, first) == {"champion": "1", "canary": "2"}
    record = decisions.return_canary(ctx, first.recipe, ADA, "again")
    assert (record.action, record.version, record.previous, record.reason) == ("returned", "1", "2", "worse on web")
    assert aliases(mlflow, first) == {"champion": "1"}
    assert [each.action for each in decisions.history(ctx, first.recipe)].count("returned") == 1
    logged = [each.outcome for each in audit_log.entries(ctx) if each.action == "return"]
    assert logged == ["done"]
    name = first.recipe.release.name
    assert verified.verify_model(ctx, f"{name}@champion").checkpoint == first.checkpoint.digest
    with pytest.raises(GateError, match="rolled back"):
        verified.verify_model(ctx, f"{name}/2")
    assert api.promote_if_approved(ctx, first.recipe) == ()


def test_a_promotion_that_was_given_back_half_way_is_not_taken_up_again(
    ctx: Context, line: Any, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    with monkeypatch.context() as patched:
        patched.setattr(verified, "verify_release", _killed)
        with pytest.raises(KeyboardInterrupt):
            api.promote_if_approved(ctx, line.recipe)
    assert aliases(mlflow, line) == {"canary": "1"}
    assert decisions.return_canary(ctx, line.recipe, ADA, "not this one").version is None
    assert aliases(mlflow, line) == {}
    assert api.promote_if_approved(ctx, line.recipe) == ()


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.exhaustive
def test_taint_freezes_tells_who_is_concerned_and_rollback_avoids_it(ctx: Context, make_line: Any, mlflow: Any) -> None:
    first, second, third = (make_line(seed) for seed in (1, 2, 3))
    for line in (first, second, third):
        release(ctx, line)
    name = first.recipe.release.name
    freeze.mark_tainted(ctx, second.checkpoint.digest, ADA, "trained on a leak")
    told = freeze.mark_tainted(ctx, third.curated.digest[:16], ADA, "poisoned")
    assert told.versions == (f"{name}/3", f"{name}-candidate/3")
    assert told.aliases == (f"{name}@champion",)
    assert any(each.startswith("checkpoint ") for each in told.manifests)
    assert mlflow.get_model_version(name, "3").tags["taint"] == f"{ADA}: poisoned"
    with pytest.raises(GateError, match="tainted"):
        verified.verify_model(ctx, f"{name}@champion")
    assert decisions.rollback(ctx, first.recipe, ADA, "poisoned").version == "1"
    assert aliases(mlflow, first) == {"champion": "1"}
    with pytest.raises(GateError, match="poisoned"):
        decisions.promote(ctx, first.recipe, "3", "eve", "again")


@pytest.mark.exhaustive
def test_a_mark_names_services_and_children_with_their_owners(ctx: Context, line: Any, mlflow: Any) -> None:
    release(ctx, line)
    name = line.recipe.release.name
    consumers.enrol(ctx, "search", "search@example.org", model=name, canary=True)
    chat = f"{name}-chat"
    mlflow.create_registered_model(chat)
    mlflow.create_model_version(chat, "s3://bucket/chat", tags={"parent": line.checkpoint.digest})
    mlflow.create_model_version(chat, "s3://bucket/chat", tags={"parent": "0" * 64})
    child = consumers.enrol(ctx, "chat", "chat@example.org", child=f"{chat}/1")
    assert (child.parent, child.uses) == (line.checkpoint.digest, f"{chat}/1 of {line.checkpoint.digest[:12]}")
    after = consumers.seconds_after_release(ctx, child)
    assert after is not None
    assert -1 <= after < 3600  # MLflow counts milliseconds, the record whole seconds
    for wrong, match in (
        (f"{chat}/2", "does not name a parent that was released"),
        (f"{chat}/9", "no model"),
        ("chat", "no model"),
    ):
        with pytest.raises(MissingError, match=match):
            consumers.enrol(ctx, "other", "chat@example.org", child=wrong)
    told = freeze.mark_tainted(ctx, line.curated.digest, ADA, "poisoned")
    assert [(row.name, row.owner, row.uses) for row in told.consumers] == [
        ("chat", "chat@example.org", child.uses + ", affected"),
        ("search", "search@example.org", f"{name}@champion, now version 1, affected"),
    ]
    assert told.gaps == ()
    entry = freeze.feed_entries(ctx)[0]
    assert (entry.event, entry.versions) == ("tainted", (f"{name}/1",))
    assert dict(entry.consumers) == {"chat": "chat@example.org", "search": "search@example.org"}
    seen = consumers.impact(ctx, line.curated.digest)
    assert seen.consumers == told.consumers
    assert seen.marks == (f"manifest {line.curated.digest[:16]} is tainted by {ADA}: poisoned",)
    assert ("champion",) in [row.aliases for row in seen.versions]
    assert consumers.impact(ctx, line.checkpoint.digest).marks == seen.marks  # frozen from above
    assert consumers.impact(ctx, fingerprint.digest("inventory")).marks == seen.marks  # and it holds what is marked
    freeze.lift_taint(ctx, line.curated.digest, ADA, "it was not")
    assert "taint" not in mlflow.get_model_version(name, "1").tags
    assert freeze.feed_entries(ctx)[-1].event == "lifted"
    assert verified.verify_model(ctx, f"{name}@champion").checkpoint == line.checkpoint.digest


@pytest.mark.exhaustive
def test_a_marked_champion_gives_way_where_the_policy_says_so(ctx: Context, make_line: Any, mlflow: Any) -> None:
    first, second = (make_line(seed) for seed in (1, 2))
    for line in (first, second):
        release(ctx, line)
    name, recipe = first.recipe.release.name, first.recipe
    freeze.mark_tainted(ctx, second.checkpoint.digest, ADA, "poisoned")
    entry = freeze.feed_entries(ctx)[0]
    assert freeze.champion_gives_way(ctx, recipe, entry) is None  # by default it stays
    policy.sign(ctx, small_policy(name, 2).model_copy(update={"tainted_champion": "goes back"}))
    freeze.lift_taint(ctx, second.checkpoint.digest, ADA, "it was not")
    assert freeze.champion_gives_way(ctx, recipe, entry) is None  # the mark was lifted
    freeze.mark_tainted(ctx, second.checkpoint.digest, ADA, "it was")
    again = freeze.feed_entries(ctx)[-1]
    moved = freeze.champion_gives_way(ctx, recipe, again)
    assert moved is not None
    assert (moved.action, moved.version, moved.previous) == ("rollback", "1", "2")
    assert "it was" in moved.reason
    assert freeze.champion_gives_way(ctx, recipe, again) is None  # it is done
    freeze.mark_tainted(ctx, first.curated.digest, ADA, "that too")
    newest = [entry for entry in freeze.feed_entries(ctx) if entry.event == "tainted"][-1]
    gone = freeze.champion_gives_way(ctx, recipe, newest)
    assert gone is not None
    assert (gone.action, gone.version) == ("withdrawn", None)
    assert aliases(mlflow, first) == {}


@pytest.mark.exhaustive
def test_a_tainted_candidate_is_not_promoted(ctx: Context, line: Any) -> None:
    register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    document = fingerprint.digest("kept")[:32]
    freeze.mark_tainted(ctx, document, ADA, "takedown")
    assert api.promote_if_approved(ctx, line.recipe) == ()
    (status,) = decisions.pending(ctx, line.recipe)
    assert [gate.name for gate in status.gates if gate.blocks] == ["taint"]
    for target in (line.checkpoint.digest, f"{line.recipe.release.name}-candidate/1"):
        with pytest.raises(GateError, match=rf"(?s)is tainted.*web/curated \(document {document[:12]}\) is tainted"):
            verified.verify_model(ctx, target)
    freeze.lift_taint(ctx, document, ADA, "it was another text")
    assert verified.verify_model(ctx, line.checkpoint.digest).checkpoint == line.checkpoint.digest
    assert api.promote_if_approved(ctx, line.recipe)


@pytest.mark.exhaustive
def test_a_tainted_probe_set_taints_the_release_that_it_measured(ctx: Context, line: Any, mlflow: Any) -> None:
    release(ctx, line)
    items = line.made("probes/own", {"files": "7" * 64})
    ctx.refs.publish(line.made("probes", {"checkpoint": line.checkpoint, "probes/own": items}), "key")
    target = f"{line.recipe.release.name}@champion"
    assert verified.verify_model(ctx, target)
    told = freeze.mark_tainted(ctx, items.digest, ADA, "leaked")
    assert f"{line.recipe.release.name}/1" in told.versions
    assert told.aliases == (f"{line.recipe.release.name}@champion",)
    with pytest.raises(GateError, match=r"(?s)is tainted.*evidence: probes/own"):
        verified.verify_model(ctx, target)


# Aliases set by hand


@pytest.mark.exhaustive
def test_an_alias_set_by_hand_changes_nothing_and_is_undone(ctx: Context, make_line: Any, mlflow: Any) -> None:
    lines = [make_line(seed) for seed in (1, 2)]
    for line in lines:
        release(ctx, line)
    recipe = lines[0].recipe
    name = recipe.release.name
    decisions.rollback(ctx, recipe, ADA, "worse")
    mlflow.set_registered_model_alias(name, "champion", "2")
    mlflow.set_registered_model_alias(name, "canary", "2")
    assert verified.verify_model(ctx, f"{name}@champion").release == f"{name}/1"
    with pytest.raises(GateError, match="was rolled back"):
        verified.verify_model(ctx, f"{name}/2")
    with pytest.raises(MissingError, match="has no canary"):
        verified.verify_model(ctx, f"{name}@canary")
    assert decisions.repair(ctx, recipe) == (
        f"{name}@champion was 2, expected 1 by the signed history",
        f"{name}@canary was 2, expected unset by the signed history",
    )
    assert decisions.repair(ctx, recipe) == ()
    assert aliases(mlflow, lines[0]) == {"champion": "1"}


@pytest.mark.exhaustive
def test_a_version_made_by_hand_is_reported_once(ctx: Context, line: Any, mlflow: Any) -> None:
    release(ctx, line)
    name = line.recipe.release.name
    mlflow.create_model_version(name, f"models:/{name}-candidate/1", await_creation_for=None)
    mlflow.set_registered_model_alias(name, "champion", "2")
    told = decisions.repair(ctx, line.recipe)
    assert [sentence.split(" ")[0] for sentence in told] == [f"{name}@champion", name]
    assert "was never released" in told[1]
    assert decisions.repair(ctx, line.recipe) == ()
    with pytest.raises(GateError, match="never released"):
        verified.verify_model(ctx, f"{name}/2")


@pytest.mark.exhaustive
def test_a_champion_is_verified_without_mlflow(ctx: Context, line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    release(ctx, line)
    monkeypatch.setattr(connection, "connect", None)
    assert verified.verify_model(ctx, f"{line.recipe.release.name}@champion").checkpoint == line.checkpoint.digest


# The rest


def test_what_has_no_name_is_missing(ctx: Context, line: Any) -> None:
    for target in ("nonexistent@champion", "nonexistent/1", "ffffffffffff", "x"):
        with pytest.raises(MissingError):
            verified.verify_model(ctx, target)
    for call in (decisions.approve, decisions.promote):
        with pytest.raises(MissingError, match="no candidate"):
            call(ctx, line.recipe, None, ADA, "why")
    assert decisions.pending(ctx, line.recipe) == ()
    assert decisions.history(ctx, line.recipe) == ()


def test_a_timeline_is_relayed_once_in_batches(ctx: Context, line: Any, mlflow: Any) -> None:
    steps = [
        {"seq": n, "event": "step", "step": n, "time": 1e9 + n, "loss": 5.0 - n / 1000, "lr": 0.1}
        for n in range(1, 1201)
    ]
    events = [
        {"seq": 0, "event": "run_started", "ranks": 2},
        *steps[:600],
        {"event": "checkpoint", "step": 600, "bytes": 9},
    ]
    assert api.relay_timeline(ctx, line.recipe, line.run.id, events) == 600
    replayed = [{**event, "time": event["time"] + 50, "redone": True} for event in steps[550:600]]
    assert api.relay_timeline(ctx, line.recipe, line.run.id, [*events, *replayed, *steps[600:]]) == 600
    assert api.relay_timeline(ctx, line.recipe, line.run.id, steps) == 0
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name(line.recipe.name).experiment_id])
    points = mlflow.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in points] == list(range(1, 1201))
    assert points[-1].value == 3.8
    assert set(run.data.metrics) == {"loss", "lr"}


def test_what_happened_besides_the_steps_is_relayed(ctx: Context, line: Any, mlflow: Any, tmp_path: Path) -> None:
    maths = {"maths": {"score": 0.25, "control": 0.5, "items": 40}}
    told: list[dict[str, Any]] = [
        {"event": "run_started", "ranks": 2},
        {"event": "step", "step": 1, "loss": 4.0},
        {"event": "evaluated", "step": 1, "tokens": 8, "slices": {"web": 2.5}, "probes": maths},
        {"event": "restart", "attempt": 1, "reason": "rank 1 was killed", "lost_steps": 1},
        {"event": "intervention", "step": 2, "rule": "loss_spike", "value": "inf"},
        {"event": "step", "step": 2, "loss": 3.0},
        {"event": "restart", "attempt": 2, "reason": "rank 0 was killed", "lost_steps": 0},
    ]
    told = [{"seq": n, "time": 1e9 + n, **event} for n, event in enumerate(told, 1)]
    assert api.relay_timeline(ctx, line.recipe, "eventful", told[:4]) == 1
    assert api.relay_timeline(ctx, line.recipe, "eventful", told) == 1  # a follower that begins again
    page = tmp_path / "run.html"
    page.write_text("<p>what happened</p>")
    api.keep_files(ctx, line.recipe, "eventful", [page])
    (run,) = mlflow.search_runs(
        [mlflow.get_experiment_by_name(line.recipe.name).experiment_id], "tags.`mlflow.runName` = 'eventful'"
    )
    assert run.data.metrics == {
        "loss": 3.0, "heldout/web": 2.5, "events/restart": 2.0, "events/intervention": 1.0,
        "probe/maths": 0.25, "probe/maths/control": 0.5, "probe/maths/items": 40.0
    }  # fmt: skip
    restarts = [(point.step, point.value) for point in mlflow.get_metric_history(run.info.run_id, "events/restart")]
    assert restarts == [(1, 1.0), (2, 2.0)]
    assert [one.path for one in mlflow.list_artifacts(run.info.run_id)] == ["run.html"]
