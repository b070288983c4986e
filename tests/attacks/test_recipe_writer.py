"""Attack: write access to the recipe, its plug-ins and the working directory of a command, without any key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import LineageError, MissingError, RecipeError, SignatureError
from plinth.evaluation.measurement import Gate
from plinth.extensions import Catalogue
from plinth.recipe.load import load
from plinth.recipe.recipe import Recipe
from plinth_jobs import targets
from plinth_jobs.cli import call, generate
from plinth_registry import approval, attestations, evidence, judgement, policy, signing, verified
from plinth_registry.candidate import Candidate
from plinth_registry.gates import evaluate
from plinth_registry.gates.settings import LicencePolicy
from tests.attacks.judging import ANNA, BEN, closed, decide
from tests.registry.conftest import TERMS, Line, make_recipe, moved, sign_candidate, small_policy

WHY = "the restarts were a planned move"


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """A recipe with other sections, as its writer would give it."""
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    return Recipe.model_validate(_merged(data, changes))


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(data[key], value) for key, value in changes.items() if isinstance(value, dict) and key in data}
    return {**data, **changes, **both}


def test_naming_a_release_with_a_lax_policy_makes_no_version_of_the_strict_one(
    ctx: Context, line: Any, unregistered: Candidate
) -> None:
    """Nor does an approval go with it: it was given under the policy of one release."""
    lax = small_policy("lax", people=1)
    policy.sign(ctx, lax)
    decide(ctx, unregistered, BEN, "good")
    assert closed(ctx, line.recipe, unregistered) == {}
    refused = closed(ctx, changed(line.recipe, release={"name": "lax"}), unregistered)
    assert "approved under another gate policy" in refused["approvals"]


def test_the_policy_of_another_release_in_this_ones_folder(ctx: Context, line: Any, unregistered: Candidate) -> None:
    policy.sign(ctx, small_policy("lax", people=0))
    name = line.recipe.release.name
    shutil.copy(policy.path_of(ctx, "lax", 1), policy.path_of(ctx, name, 1))
    with pytest.raises(SignatureError, match="are broken at"):
        policy.current(ctx, name)


def test_a_waiver_of_another_release(ctx: Context, line: Any, unregistered: Candidate) -> None:
    """The same candidate, as another release's owner let it pass."""
    name = line.recipe.release.name
    lax = policy.sign(ctx, small_policy("lax"))
    judgement.sign_waiver(ctx, lax, "stability", unregistered.key, WHY, "2999-01-01T00:00:00+00:00")
    folder = policy.path_of(ctx, name, 1).parent / "waivers"
    shutil.copytree(policy.path_of(ctx, "lax", 1).parent / "waivers", folder)
    found = judgement.waivers_of(ctx, policy.current(ctx, name), unregistered.key)
    assert (dict(found.valid), len(found.faults)) == ({}, 1)


def test_a_waiver_put_back_over_the_shorter_one_that_replaced_it(
    ctx: Context, line: Any, unregistered: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    governing = policy.current(ctx, line.recipe.release.name)
    judgement.sign_waiver(ctx, governing, "stability", unregistered.key, WHY, "2999-01-01T00:00:00+00:00")
    (path,) = judgement.waiver_paths(ctx, governing.policy.release, unregistered.key)
    longer = path.read_bytes()
    later = datetime.now(UTC) + timedelta(minutes=5)
    monkeypatch.setattr(judgement, "now", lambda: later.isoformat(timespec="seconds"))
    judgement.sign_waiver(ctx, governing, "stability", unregistered.key, WHY, (later + timedelta(hours=1)).isoformat())
    assert list(judgement.waivers_of(ctx, governing, unregistered.key).valid) == ["stability"]
    path.write_bytes(longer)
    found = judgement.waivers_of(ctx, governing, unregistered.key)
    assert (dict(found.valid), "replaced by a later waiver" in found.faults[0]) == ({}, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"release": {"gates": {"approvals": {"people": 0}}}},
        {"release": {"policy": "lax"}},
        {"evaluation": {"waive": ["stability"]}},
        {"release": {"name": "../lax"}},
        {"name": "../../etc"},
        {"corpus": {"buckets": {"../web": {}}}},
    ],
)
def test_keys_and_names_that_would_say_more_than_a_recipe_may(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"validation error|problem"):
        changed(make_recipe("demo"), **changes)


def test_permitting_its_own_licences_and_leaving_measurements_out(
    ctx: Context, line: Any, unregistered: Candidate
) -> None:
    """Evidence attested under the first recipe is judged by the policy's list; missing measurements fail."""
    release = line.recipe.release.name
    licences = LicencePolicy(permitted=("CC0-1.0",))
    strict = small_policy(release, 2).model_copy(update={"licences": licences})
    without = {name: why for name, why in strict.without.items() if name not in ("probes", "extraction")}
    policy.sign(ctx, strict.model_copy(update={"without": without}))
    generous = changed(line.recipe, corpus={"permitted_licences": ["MIT", "proprietary"]}, evaluation={"probes": {}})
    decide(ctx, unregistered, BEN, "good")
    assert {"licence", "probes", "extraction"} <= set(closed(ctx, generous, unregistered))


def test_terms_that_are_changed_after_the_text_was_read(
    ctx: Context, make_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe now allows redistribution of its source; it did not when the text was read and attested."""
    monkeypatch.setitem(TERMS, "redistribute", False)
    line = make_line()
    found = sign_candidate(ctx, line)
    facts = {"documents": {"MIT": 2}, "sources": {"test 2026-01": {"documents": 2, **TERMS}}, "permitted": ["MIT"]}
    about = line.checkpoint.digest
    attestations.attest(ctx, line.recipe, "licences", "licences", about, materials=line.materials, facts=facts)
    decide(ctx, found, BEN, "good")
    assert closed(ctx, line.recipe, found) == {}
    uses = LicencePolicy(uses=("train", "redistribute"))
    policy.sign(ctx, small_policy(line.recipe.release.name, 2).model_copy(update={"licences": uses}))
    decide(ctx, found, BEN, "good")
    assert line.recipe.corpus.buckets["web"].sources[0].terms.redistribute
    refused = "train, redistribute: granted by 0 of 1 source; test 2026-01 does not grant redistribute"
    assert closed(ctx, line.recipe, found) == {"terms": refused}


@pytest.mark.parametrize("secret", ["password: hunter2-hunter2\n", "[default]\npassword = hunter2-hunter2\nx: [1\n"])
def test_extending_a_file_of_secrets_shows_none_of_its_values(tmp_path: Path, secret: str) -> None:
    """A recipe is read where secrets lie, and its errors are in everybody's log."""
    (tmp_path / "secret").write_text(secret)
    (tmp_path / "recipe.yaml").write_text("extends: ./secret\nname: demo\n")
    with pytest.raises(RecipeError) as caught:
        load(tmp_path / "recipe.yaml")
    assert "secret" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_leaving_a_bucket_out_of_the_held_out_text(ctx: Context, line: Any, unregistered: Candidate) -> None:
    """An evaluation without a slice that the model was trained on does not pass as one of fewer slices."""
    decide(ctx, unregistered, BEN, "good")
    more = changed(line.recipe, corpus={"buckets": {"code": line.recipe.corpus.buckets["web"].model_dump(mode="json")}})
    assert "code" in closed(ctx, more, unregistered)["beats_gzip"]
    assert line.recipe.corpus.buckets.keys() == {"web"}


def test_a_plug_in_gate_cannot_change_what_other_gates_read(
    ctx: Context, line: Any, unregistered: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This gate is evaluated before the approval gate."""
    found = Catalogue("plinth.none", "gate", Gate, {"forging": "tests.attacks.judging:FORGING"})
    monkeypatch.setattr("plinth_registry.gates.GATES", found)
    asked = small_policy(line.recipe.release.name).model_copy(update={"extensions": {"forging": {}}})
    known = evidence.gather(ctx, line.recipe, unregistered, {})
    results = {one.name: one.passed for one in evaluate(asked, known)}
    assert (results["forging"], results["approvals"]) == (True, False)


@pytest.mark.parametrize("how", ["two_keys", "own_run"])
def test_two_people_are_neither_one_person_twice_nor_the_one_who_asked(
    ctx: Context, line: Any, unregistered: Candidate, how: str
) -> None:
    asker = unregistered.model_copy(update={"facts": line.facts(requested_by=BEN if how == "own_run" else "carl")})
    governing = policy.sign(ctx, small_policy(line.recipe.release.name, 2, two_person=True, people=2)).digest
    approval.sign(ctx, asker, ANNA, "good", policy=governing)
    tags = {"approval": "approved", "approval.by": BEN, "approval.reason": "me too"}
    if how == "own_run":
        approval.sign(ctx, asker, BEN, "good", policy=governing)
    assert "approvals" in closed(ctx, line.recipe, asker, tags)


# Names of models, in a working directory that another user can write


@pytest.fixture
def champion(ctx: Context, unregistered: Candidate) -> str:
    moved(ctx, "champion", "1", unregistered.subjects)
    return "demo@champion"


@pytest.mark.parametrize("place", ["champion", "previous"])
def test_a_folder_with_the_name_of_a_release(
    ctx: Context, line: Any, champion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A genuine but unreleased candidate has the name that a command is given."""
    other = sign_candidate(ctx, Line(ctx, line.recipe, 2))
    folder = tmp_path / f"demo@{place}"
    shutil.copytree(other.directory, folder)
    for path in (signing.signature_path, signing.slsa_path):
        shutil.copy(path(other.directory), path(folder))
    monkeypatch.chdir(tmp_path)
    if place == "champion":
        assert verified.verify_model(ctx, champion).checkpoint == line.checkpoint.digest
        assert targets.model(ctx, "release", lambda: "demo").digest == line.checkpoint.digest
        return
    for refused in (
        lambda: verified.verify_model(ctx, folder.name),
        lambda: targets.model(ctx, folder.name, lambda: "demo"),
        lambda: generate.engine(ctx, folder.name),
    ):
        with pytest.raises(MissingError, match="has no previous"):
            refused()


def test_an_export_with_the_name_of_a_release(
    ctx: Context, champion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / champion).mkdir()
    (tmp_path / champion / "EXPORT.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert call(["verify", champion, "--fast", "--json", "-w", str(ctx.workspace.root)]) == 0
    assert json.loads(capfd.readouterr().out)["release"] == "demo/1"


def test_another_signed_model_under_a_checkpoints_digest(ctx: Context, line: Any, unregistered: Candidate) -> None:
    """Both are genuine; the one that was asked for is gone."""
    other = sign_candidate(ctx, Line(ctx, line.recipe, 2))
    target = line.checkpoint.digest
    assert verified.verify_model(ctx, target[:10]).checkpoint == target
    for path in (lambda folder: folder, signing.signature_path, signing.slsa_path):
        old = path(unregistered.directory)
        shutil.rmtree(old) if old.is_dir() else old.unlink()
        path(other.directory).rename(old)
    for asked in (target, target[:10]):
        with pytest.raises(LineageError, match="is not checkpoint"):
            verified.verify_model(ctx, asked)
