"""Attack: evidence is replaced with other evidence by an attacker who can write every file but has no keys."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import LineageError, TrustError
from plinth.training.attempts import BUNDLE
from plinth.training.checkpoint import checkpoint
from plinth.training.validation.probe_curves import LOOKS
from plinth_assets.measurements import quality
from plinth_registry import attestations, candidate, evidence, trained
from plinth_registry.candidate import Candidate
from plinth_registry.gates import evaluate
from plinth_registry.gates.settings import gate_policy
from tests.attacks.judging import BEN, closed, decide
from tests.registry.conftest import Line, sign_candidate, small_policy


def proved(ctx: Context, line: Line) -> Any:
    return trained.proved(ctx, line.checkpoint, line.provenance())


# ---- where a checkpoint comes from ---------------------------------------------------------------


def test_a_checkpoint_that_no_trainer_spoke_of(ctx: Context, line: Line) -> None:
    shutil.rmtree(line.directory.root)
    with pytest.raises(LineageError, match="no training statement for step 5"):
        line.provenance()


def test_weights_that_the_trainer_did_not_commit(ctx: Context, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(proved(ctx, line)) == 1
    monkeypatch.setattr(line, "model_files", lambda: {"model.safetensors": b"others", "config.json": b"{}"})
    changed = line._checkpoint()
    with pytest.raises(LineageError, match="the registered files differ"):
        trained.proved(ctx, changed, {**line.provenance(), "files": {"model.safetensors": {"sha256": "0" * 64}}})


def test_statements_of_another_run(ctx: Context, make_line: Any, line: Line) -> None:
    """Statements of a run on a clean commit are copied to the checkpoint of a run with local changes."""
    other = make_line(2)
    source = checkpoint.path(other.directory, 5) / BUNDLE
    shutil.copy(source, checkpoint.path(line.directory, 5) / BUNDLE)
    with pytest.raises(LineageError, match="the registered files differ"):
        proved(ctx, line)
    shutil.rmtree(line.directory.checkpoints)
    shutil.copytree(other.directory.checkpoints, line.directory.checkpoints)
    with pytest.raises(TrustError):
        proved(ctx, line)


def test_an_attempt_taken_out_of_the_account(ctx: Context, line: Line) -> None:
    """The newest attempt recorded changes in its work tree: without it, the run looks clean."""
    line.commit({"dirty": True})
    kept = checkpoint.path(line.directory, 5) / BUNDLE
    assert trained.code(proved(ctx, line)).unclean == (
        f"attempt 2 on node-1: uncommitted changes on {'c0ffee' + '0' * 6}",
    )
    content = json.loads(kept.read_bytes())
    kept.write_text(json.dumps({"attempts": content["attempts"][:1]}))
    with pytest.raises(LineageError, match="the registered files differ"):
        proved(ctx, line)


def test_the_record_of_another_step(ctx: Context, line: Line) -> None:
    line.commit(step=6)
    shutil.rmtree(checkpoint.path(line.directory, 5))
    shutil.copytree(checkpoint.path(line.directory, 6), checkpoint.path(line.directory, 5))
    shutil.copy(checkpoint.record_path(line.directory, 6), checkpoint.record_path(line.directory, 5))
    with pytest.raises(LineageError, match="is invalid: no trainer key"):
        proved(ctx, line)


def test_steps_trained_before_anything_was_stated(ctx: Context, line: Line) -> None:
    shutil.rmtree(line.directory.attempts)
    (checkpoint.path(line.directory, 5) / BUNDLE).unlink()
    line.commit()
    with pytest.raises(LineageError, match="do not lead to step 5"):
        proved(ctx, line)


def test_a_directory_signed_without_the_trainers_account(
    ctx: Context, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a registering process with the key could, were the gate not to look again."""
    whole = line.provenance()
    monkeypatch.setattr(line, "provenance", lambda: {**whole, "training": {}})
    found = sign_candidate(ctx, line)
    decide(ctx, found, BEN, "good")
    assert closed(ctx, line.recipe, found) == {
        "lineage": "no training statement for this checkpoint: no statement by the trainer",
        "taint": "no evidence",
    }
    with pytest.raises(LineageError):
        candidate.verify_candidate(ctx, found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"dirty": True}, "uncommitted changes on"),
        ({"commit": "", "no_commit": "there is no git on this machine"}, "there is no git"),
    ],
)
def test_code_that_no_commit_names(ctx: Context, line: Line, changes: dict[str, Any], reason: str) -> None:
    line.commit({}, changes)
    found: Candidate = sign_candidate(ctx, line)
    gathered, asked = evidence.gather(ctx, line.recipe, found, {}), small_policy("x")
    clean = gate_policy(asked.model_dump() | {"lineage": {"clean_commit": True}})
    for policy, said in ((asked, ""), (clean, reason)):
        (lineage,) = [one for one in evaluate(policy, gathered) if one.name == "lineage"]
        assert lineage.passed is not bool(said)
        assert said in lineage.reason
    assert gathered.lineage is not None
    assert "trained in 3 attempts, commit c0ffee000000" in gathered.lineage.detail


# ---- figures that a key-holder signed, and no table gives ----------------------------------------


def test_a_figure_that_its_table_does_not_give(ctx: Context, line: Line) -> None:
    """The attacker has the evaluator's key, edits a statistic and leaves the bits of each document unchanged."""
    line.evaluation = line.evaluate(model=2.6, stated=0.22)
    found = sign_candidate(ctx, line)
    decide(ctx, found, BEN, "good")
    refused = closed(ctx, line.recipe, found)
    assert set(refused) == {"beats_gzip", "beats_trigram"}
    assert "evaluation: web/model: stated 0.22, recomputed 2.6" in refused["beats_gzip"]


@pytest.mark.parametrize(
    ("kind", "claimed", "gates_closed"),
    [
        ("contamination", {}, set()),
        ("contamination", {"documents": 90, "contaminated": 0}, {"contamination"}),
        ("licences", {"documents": {"MIT": 1}, "sources": {}, "permitted": ["MIT"]}, {"licence", "terms"}),
        ("resume", {"bit_exact": True, "compared_steps": 900, "faults": []}, {"resume"}),
    ],
)
def test_a_claim_signed_by_its_role_that_the_text_does_not_bear_out(
    ctx: Context, line: Line, unregistered: Candidate, kind: str, claimed: dict[str, Any], gates_closed: set[str]
) -> None:
    decide(ctx, unregistered, BEN, "good")
    stated = attestations.about(ctx, line.checkpoint.digest).valid[kind].facts
    facts = {name: claimed.get(name, value) for name, value in stated.items()}
    attestations.attest(ctx, line.recipe, kind, kind, line.checkpoint.digest, materials=line.materials, facts=facts)
    assert set(closed(ctx, line.recipe, unregistered)) == gates_closed


# ---- evidence of yesterday ----------------------------------------------------------------------


def test_older_evidence_of_the_same_checkpoint_put_back(ctx: Context, line: Line, unregistered: Candidate) -> None:
    """The evaluator signed both; evidence that was replaced by newer evidence is ignored, and so are copies of it."""
    decide(ctx, unregistered, BEN, "good")
    path = attestations.path_of(ctx, line.checkpoint.digest, "probes")
    for score in (0.9, 0.1):
        kept = path.read_bytes() if path.exists() else b""
        probes = line.made("probes", {"checkpoint": line.checkpoint.digest}, score=score)
        stated = attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, probes)
    assert (stated.number, len(stated.replaces)) == (2, 64)
    assert closed(ctx, line.recipe, unregistered) == {}
    path.write_bytes(kept)
    assert "is outdated: this machine has seen a newer statement" in closed(ctx, line.recipe, unregistered)["signature"]
    assert "probes" not in attestations.about(ctx, line.checkpoint.digest).valid
    again = attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, probes)
    assert (again.number, again.replaces) == (3, "")
    assert closed(ctx, line.recipe, unregistered) == {}


def test_a_timeline_edited_so_that_a_probe_passes_as_noise(ctx: Context, line: Line) -> None:
    """Probe evaluations are committed with the checkpoint: later edits of the timeline do not change any value."""
    looks = [{"score": 2.0 - step / 100, "control": 3.0} for step in range(1, 6)]
    line.look(*looks)
    line.commit()
    honest = quality.worth(line.provenance())
    assert honest["maths"].decides
    line.look(*({**one, "score": one["score"] * (3 if step % 2 else 0.1)} for step, one in enumerate(looks)))
    line.commit(step=6)
    assert quality.worth(line.provenance()) == honest
    kept = json.loads((checkpoint.path(line.directory, 6) / LOOKS).read_bytes())["looks"]["maths"]
    assert [look[2] for look in kept] == [one["score"] for one in looks]
    for changed in ({}, {"looks": {"maths": kept[:1]}}):
        bare = {name: own for name, own in line.provenance()["training"].items() if name != "looks"}
        with pytest.raises(LineageError, match="the registered files differ"):
            trained.proved(ctx, line.checkpoint, line.provenance() | {"training": bare | changed})
