"""Attack: write access to all of MLflow: names, versions, aliases, tags, metrics. None of it affects a decision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, MissingError, SignatureError
from plinth_registry import api, audit_log, candidate, decisions, freeze, promotion, verified
from plinth_registry.registration import ensure_run, version_text
from plinth_registry.releases import ReleaseRecord

ADA, BEN = "ada@example.org", "ben@example.org"


def register(ctx: Context, line: Any, **facts: object) -> Any:
    given = (line.recipe, line.checkpoint, line.evaluation, line.run, line.facts(**facts))
    return api.register_candidate(ctx, *given, materials=line.materials)[0]


def release(ctx: Context, line: Any) -> ReleaseRecord:
    found = register(ctx, line)
    decisions.approve(ctx, line.recipe, found.version, ADA, "good")
    return decisions.promote(ctx, line.recipe, found.version, "ops", "weekly")


def name_of(line: Any) -> str:
    return str(line.recipe.release.name)


@pytest.mark.exhaustive
def test_models_deleted_and_made_again_give_no_number_twice(ctx: Context, make_line: Any, mlflow: Any) -> None:
    """MLflow counts from 1 again: version 1 would be another model than the one that the history calls so."""
    first, second, third = (make_line(seed) for seed in (1, 2, 3))
    name = name_of(first)
    release(ctx, first)
    mlflow.delete_registered_model(f"{name}-candidate")
    record = release(ctx, second)  # the first one's number among the candidates, and so its source
    assert (record.version, record.candidate_version, record.previous) == ("2", "1", "1")
    mlflow.delete_registered_model(name)
    assert decisions.repair(ctx, first.recipe) == (f"{name} is missing in MLflow: it was deleted",)
    assert release(ctx, third).version == "3"
    assert mlflow.get_model_version(name, "1").tags[promotion.FOREIGN]
    for version, line in (("1", first), ("2", second), ("3", third)):
        assert verified.verify_model(ctx, f"{name}/{version}").checkpoint == line.checkpoint.digest


@pytest.mark.exhaustive
def test_a_deleted_version_is_reported_and_stops_no_rollback(ctx: Context, make_line: Any, mlflow: Any) -> None:
    """A command that failed after its record would be repeated, and take back one version more."""
    lines = [make_line(seed) for seed in (1, 2)]
    for line in lines:
        release(ctx, line)
    name = name_of(lines[0])
    for version in ("1", "2"):
        mlflow.delete_model_version(name, version)
    told = decisions.repair(ctx, lines[0].recipe)
    assert f"{name}@champion was unset, expected 2 by the signed history, and that version is missing in MLflow" in told
    missing = decisions.missing_in_mlflow(ctx, lines[0].recipe)
    assert missing == (f"{name} version 2 (champion)", f"{name} version 1 (previous)")
    assert decisions.rollback(ctx, lines[0].recipe, ADA, "worse").version == "1"
    assert [each.action for each in decisions.history(ctx, lines[0].recipe)].count("rollback") == 1
    assert audit_log.entries(ctx)[-1].outcome == "done"
    assert verified.verify_model(ctx, f"{name}@champion").release == f"{name}/1"


def test_a_candidate_tag_moved_to_another_candidate_of_the_same_checkpoint(
    ctx: Context, line: Any, mlflow: Any
) -> None:
    """Another evaluation under the number of the approved one: the approval is about what was signed."""
    good = line.evaluation
    line.evaluation = line.evaluate(model=9.0)
    worse = register(ctx, line)
    line.evaluation = line.evaluate(model=2.0)
    assert line.evaluation == good
    found = register(ctx, line)
    decisions.approve(ctx, line.recipe, found.version, ADA, "good")
    mlflow.set_model_version_tag(worse.model, worse.version, "candidate", found.key)
    mlflow.set_model_version_tag(found.model, found.version, "candidate", worse.key)
    shutil.copytree(ctx.workspace.approvals / found.key[:12], ctx.workspace.approvals / worse.key[:12])
    with pytest.raises(GateError, match=r"(?s)beats_gzip.*approvals: 0 of 1"):
        decisions.promote(ctx, line.recipe, found.version, "eve", "it is approved")
    assert decisions.promote(ctx, line.recipe, worse.version, "ops", "the approved one").candidate == found.subjects


def test_a_version_that_squats_on_a_candidates_key(ctx: Context, line: Any, mlflow: Any) -> None:
    """Made before the trainer registers, with the key that will come and another source."""
    key = candidate.key_of(line.checkpoint.digest, line.evaluation.digest, line.facts())
    name = candidate.model_name(line.recipe)
    mlflow.create_registered_model(name)
    for source in ("plinth:///models/000000000000", "s3://bucket/evil", "plinth:///models/../../etc"):
        mlflow.create_model_version(name, source, tags={"candidate": key}, await_creation_for=None)
    found = register(ctx, line)
    assert found.version == "4"
    decisions.approve(ctx, line.recipe, "4", ADA, "good")
    for version in ("1", "2", "3"):
        with pytest.raises((SignatureError, LineageError)):
            decisions.promote(ctx, line.recipe, version, "eve", "the same key")
    assert api.promote_if_approved(ctx, line.recipe)[0].candidate_version == "4"


def test_metrics_and_artefacts_of_a_run_decide_nothing(ctx: Context, line: Any, mlflow: Any, tmp_path: Path) -> None:
    line.evaluation = line.evaluate(model=9.0)
    found = register(ctx, line)
    run = ensure_run(mlflow, line.recipe.name, line.run.id)
    for who, bits in (("model", 0.1), ("gzip", 9.9), ("trigram", 9.9)):
        mlflow.log_metric(run.info.run_id, f"bits_per_byte/web/{who}", bits)
    (tmp_path / "evidence.json").write_text(json.dumps({"verificationResult": "PASSED"}))
    mlflow.log_artifact(run.info.run_id, str(tmp_path / "evidence.json"))
    decisions.approve(ctx, line.recipe, found.version, ADA, "the metrics look good")
    with pytest.raises(GateError, match="beats_gzip"):
        decisions.promote(ctx, line.recipe, found.version, "eve", "look at the metrics")


def test_what_the_page_says_of_gates_is_written_over(ctx: Context, line: Any, mlflow: Any) -> None:
    found = register(ctx, line, licences={"proprietary": 1})
    tags = {"gates": "passed", "gate/licence": "passed: fine", "gates.evidence": "00", "policy": "mine"}
    for tag, value in tags.items():
        mlflow.set_model_version_tag(found.model, found.version, tag, value)
    mlflow.update_model_version(found.model, found.version, "## Gates: passed\n\n## Scores\n\n| web | 9 | 0.01 |")
    (status,) = decisions.pending(ctx, line.recipe)
    assert not status.ready
    page = mlflow.get_model_version(found.model, found.version)
    assert "## Gates: failed (licence" in page.description
    assert "| web | 1,000 | 2.000 | 3.500 | 2.500 |" in page.description
    assert "0.01" not in page.description
    shown = page.tags
    assert shown["gates"].startswith("failed (licence")
    assert shown["gate/licence"].startswith("failed")
    assert shown["gates.evidence"] != "00"
    assert "signed by" in shown["policy"]


def test_an_approvals_tag_in_anothers_name_where_statements_are_asked_for(
    ctx: Context, make_line: Any, mlflow: Any
) -> None:
    line = make_line(accepted=["statement"])
    found = register(ctx, line)
    for tag, value in {"approval": "approved", "approval.by": ADA, "approval.reason": "good"}.items():
        mlflow.set_model_version_tag(found.model, found.version, tag, value)
    assert api.promote_if_approved(ctx, line.recipe) == ()
    mlflow.set_model_version_tag(found.model, found.version, "approval.2", "rejected")  # nor does one veto
    decisions.approve(ctx, line.recipe, found.version, BEN, "good")
    (record,) = api.promote_if_approved(ctx, line.recipe)
    assert [decision.by for decision in record.approvals if decision.how == "statement"] == [BEN]


def test_stages_and_aliases_of_candidates_are_no_places(ctx: Context, line: Any, mlflow: Any) -> None:
    """Stages and aliases that other tools treat as production."""
    found = register(ctx, line)
    mlflow.set_registered_model_alias(found.model, "champion", found.version)
    mlflow.transition_model_version_stage(found.model, found.version, "Production")
    mlflow.create_registered_model(name_of(line), tags={"champion": "1"})
    mlflow.create_model_version(name_of(line), f"models:/{found.model}/1", await_creation_for=None)
    mlflow.transition_model_version_stage(name_of(line), "1", "Production")
    for target in (f"{found.model}@champion", f"{name_of(line)}@champion", f"{name_of(line)}@Production"):
        with pytest.raises(MissingError, match="has no"):
            verified.verify_model(ctx, target)
    with pytest.raises(GateError, match="never released"):
        verified.verify_model(ctx, f"{name_of(line)}/1")


def test_a_settled_candidate_is_not_taken_up_again_under_a_new_version(ctx: Context, line: Any, mlflow: Any) -> None:
    """A version that was rolled back, copied under a new number with its tags."""
    release(ctx, line)
    decisions.rollback(ctx, line.recipe, BEN, "it leaks", withdraw=True)
    old = mlflow.get_model_version(candidate.model_name(line.recipe), "1")
    mlflow.create_model_version(old.name, old.source, tags=old.tags, await_creation_for=None)
    assert api.promote_if_approved(ctx, line.recipe) == ()
    with pytest.raises(GateError, match="was rolled back"):
        verified.verify_model(ctx, f"{name_of(line)}/1")


def test_terminal_commands_in_tags_never_reach_a_terminal(
    ctx: Context, line: Any, mlflow: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from plinth_jobs.cli.release import show_candidates

    found = register(ctx, line)
    clear = "\x1b[2J\x1b]0;approved\x07[bold green]passed[/]\u202e"
    for tag, value in {"approval": "rejected", "approval.by": clear, "approval.reason": clear}.items():
        mlflow.set_model_version_tag(found.model, found.version, tag, value)
    mlflow.update_model_version(found.model, found.version, description=clear + "<script>alert(1)</script>")
    capfd.readouterr()
    show_candidates(decisions.pending(ctx, line.recipe))
    shown = capfd.readouterr().out
    assert "rejection not" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_marks_of_a_relay_set_by_hand_lose_nothing(ctx: Context, line: Any, mlflow: Any) -> None:
    run = ensure_run(mlflow, line.recipe.name, line.run.id)
    steps = [{"seq": n, "event": "step", "step": n, "time": 1e9 + n, "loss": 5.0} for n in (1, 2, 3)]
    assert api.relay_timeline(ctx, line.recipe, line.run.id, steps) == 3
    for tags in ({"plinth.relayed_step": "soon"}, {"plinth.event_counts": "[" * 5000}, {"plinth.event_counts": "7"}):
        for tag, value in tags.items():
            mlflow.set_tag(run.info.run_id, tag, value)
        api.relay_timeline(ctx, line.recipe, line.run.id, steps)
        assert len(mlflow.get_metric_history(run.info.run_id, "loss")) == 3


def test_tags_that_cannot_be_read_stop_no_mark(ctx: Context, line: Any, mlflow: Any) -> None:
    """Consumers are notified after MLflow shows the mark: an error of MLflow must not prevent the notification."""
    record = release(ctx, line)
    for name, version in ((record.model, record.version), (candidate.model_name(line.recipe), "1")):
        mlflow.set_model_version_tag(name, version, "gate/licence", "[1]")
        mlflow.update_model_version(name, version, "\x1b[2J" * 900)
    told = freeze.mark_tainted(ctx, line.checkpoint.digest, ADA, "a leak")
    assert told.gaps == ()
    assert "tainted" in [entry.event for entry in freeze.feed_entries(ctx)]
    assert "TAINTED, do not use" in mlflow.get_model_version(record.model, record.version).description
    for value in ("{", "7", "fine: passed", "[" * 100_000, ""):
        assert version_text("known", {"gate/licence": value}) == "known"
