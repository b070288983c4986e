"""Attack: write access to every file of a workspace, without any of its keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Manifest
from plinth.storage.workspace import TRUST_VARIABLE
from plinth.trust import dsse, enrolment
from plinth.trust.dsse import EVALUATOR
from plinth.trust.root import Trust
from plinth_registry import approval, attestations, candidate, judgement, policy, releases, taint
from plinth_registry.candidate import Candidate
from tests.attacks.judging import ANNA, BEN, closed, decide
from tests.registry.conftest import small_policy


@pytest.fixture
def approved(ctx: Context, line: Any, unregistered: Candidate) -> Candidate:
    decide(ctx, unregistered, BEN, "good")
    assert closed(ctx, line.recipe, unregistered) == {}
    return unregistered


def test_putting_an_approval_back_over_the_rejection_that_replaced_it(
    ctx: Context, line: Any, approved: Candidate
) -> None:
    path = decide(ctx, approved, ANNA, "good")
    earlier = path.read_bytes()
    decide(ctx, approved, ANNA, "found a leak", "rejected")
    assert list(closed(ctx, line.recipe, approved)) == ["approvals"]
    path.write_bytes(earlier)
    with pytest.raises(SignatureError, match=f"newest decision of {ANNA}"):
        closed(ctx, line.recipe, approved)
    decide(ctx, approved, ANNA, "mended since")
    assert closed(ctx, line.recipe, approved) == {}


@pytest.mark.parametrize("content", [None, b"{}", b""])
def test_removing_a_rejection(ctx: Context, line: Any, approved: Candidate, content: bytes | None) -> None:
    path = decide(ctx, approved, ANNA, "found a leak", "rejected")
    assert list(closed(ctx, line.recipe, approved)) == ["approvals"]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SignatureError, match=f"newest decision of {ANNA}"):
        closed(ctx, line.recipe, approved)


def test_renaming_one_persons_approval_to_anothers(ctx: Context, line: Any, approved: Candidate) -> None:
    own = approval.statement_path(ctx, approved, BEN)
    shutil.copy(own, approval.statement_path(ctx, approved, ANNA))
    found, faults = approval.collect(ctx, approved, {}, policy.governing(ctx, line.recipe.required_release().name))
    assert [one.by for one in found] == [BEN]
    assert len(faults) == 1


def test_removing_the_reference_to_marked_evidence(ctx: Context, line: Any, approved: Candidate) -> None:
    """A mark on probes blocks the model, even if no record shows any more that they were published."""
    inputs = {"checkpoint": line.checkpoint.digest}
    probes = Manifest(asset="probes", step="probes", version="1", params={}, inputs=inputs, parts=())
    ctx.refs.save(probes)
    ctx.refs.publish(probes, "key")
    attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, probes)
    taint.mark(ctx, probes.digest, "anna", "they leaked")
    assert "taint" in " ".join(closed(ctx, line.recipe, approved))
    (ctx.workspace.refs / "probes.json").unlink()
    assert probes.digest in candidate.evidence_of(ctx, line.checkpoint.digest)
    assert "taint" in " ".join(closed(ctx, line.recipe, approved))


def test_the_attestation_of_a_better_checkpoint(ctx: Context, make_line: Any, line: Any, approved: Candidate) -> None:
    better = make_line(2)
    source = attestations.path_of(ctx, better.checkpoint.digest, "evaluation")
    shutil.copy(source, attestations.path_of(ctx, line.checkpoint.digest, "evaluation"))
    refused = closed(ctx, line.recipe, approved)
    assert "is about another subject" in refused["signature"]
    assert "beats_gzip" in refused


def test_a_second_measurement_of_the_same_checkpoint(ctx: Context, line: Any, approved: Candidate) -> None:
    """The evaluator signed for it; the candidate was registered, and approved, with another."""
    line.evaluate(model=0.22)
    assert {"beats_gzip", "beats_trigram"} <= set(closed(ctx, line.recipe, approved))


@pytest.mark.parametrize("kind", ["resume", "licences", "contamination", "stability", "cost"])
def test_removing_a_statement_that_a_gate_reads(ctx: Context, line: Any, approved: Candidate, kind: str) -> None:
    attestations.path_of(ctx, line.checkpoint.digest, kind).unlink()
    assert len(closed(ctx, line.recipe, approved)) >= 1


def test_signing_all_again_under_a_root_of_ones_own(
    ctx: Context, line: Any, approved: Candidate, tmp_path: Path
) -> None:
    """Keys, policy, approvals and evidence that agree with one another, and with nothing that is pinned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(tmp_path / "eves"))
        enrolment.initialise(ctx.workspace, "tests", [BEN])
        shutil.rmtree(ctx.workspace.policies)
        shutil.rmtree(ctx.workspace.root / "audit")
        policy.sign(ctx, small_policy(line.recipe.required_release().name))
        approval.statement_path(ctx, approved, BEN).unlink()
        decide(ctx, approved, BEN, "good")
        line.evaluate(model=0.1)
    with pytest.raises(SignatureError):
        policy.current(ctx, line.recipe.required_release().name)


def test_making_keys_by_removing_those_that_are_there(ctx: Context, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(tmp_path / "nothing"))
        with pytest.raises(SignatureError, match="no root of trust"):
            Trust.of(ctx.workspace).signer(EVALUATOR)
    assert not (tmp_path / "nothing").exists()


def test_a_verdict_that_passed_in_place_of_one_that_failed(ctx: Context, make_line: Any, approved: Candidate) -> None:
    where = judgement.verdict_path(approved)
    where.write_text(
        json.dumps(dsse.statement(judgement.VERDICT_PREDICATE, approved.subjects, {"verificationResult": "PASSED"}))
    )
    with pytest.raises(SignatureError):
        judgement.read_verdict(ctx, approved)


def test_a_record_of_release_signed_by_nobody(ctx: Context) -> None:
    ctx.workspace.releases.mkdir(parents=True, exist_ok=True)
    (ctx.workspace.releases / "00001.json").write_text(json.dumps({"record": {"number": 1}, "envelope": {}}))
    with pytest.raises(SignatureError):
        releases.history(ctx)
