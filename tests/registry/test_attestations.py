"""Statements about a checkpoint count if the right role signed them, for this checkpoint and this manifest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Manifest
from plinth.trust import dsse
from plinth.trust.dsse import EVALUATOR, TRAINER
from plinth.trust.root import Trust
from plinth_registry import attestations


@pytest.fixture
def attested(ctx: Context, line: Any) -> attestations.Attestation:
    return attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, line.evaluation)


def path(ctx: Context, line: Any) -> Any:
    return attestations.path_of(ctx, line.checkpoint.digest, "evaluation")


def test_a_statement_names_what_it_is_about(ctx: Context, line: Any, attested: attestations.Attestation) -> None:
    found = attestations.about(ctx, line.checkpoint.digest)
    assert found.valid == {"evaluation": attested}
    assert found.faults == ()
    assert attested.manifest == line.evaluation.digest
    assert attested.materials["checkpoint"] == line.checkpoint.digest
    assert len(attested.recipe) == len(attested.code) == 64
    assert attestations.is_attested(ctx, line.checkpoint.digest, line.evaluation)


def test_saying_it_again_writes_nothing(ctx: Context, line: Any, attested: attestations.Attestation) -> None:
    before = path(ctx, line).stat().st_mtime_ns
    attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, line.evaluation)
    assert path(ctx, line).stat().st_mtime_ns == before


def test_a_forged_manifest_has_no_statement(ctx: Context, line: Any, attested: attestations.Attestation) -> None:
    changed = {"stats": {"slices": {"web": {"model": 0.22}}}}
    forged = Manifest.model_validate(line.evaluation.model_dump(mode="json") | changed)
    assert forged.digest != line.evaluation.digest
    assert not attestations.is_attested(ctx, line.checkpoint.digest, forged)


def test_the_trainer_states_no_measurement(ctx: Context, line: Any, attested: attestations.Attestation) -> None:
    content = dsse.unverified(dsse.envelope_of(path(ctx, line)), "it")
    dsse.write(path(ctx, line), content, Trust.of(ctx.workspace).signer(TRAINER))
    found = attestations.about(ctx, line.checkpoint.digest)
    assert found.valid == {}
    assert "signature" in found.faults[0]


@pytest.mark.parametrize("field", ["checkpoint", "asset", "kind"])
def test_a_statement_under_another_name_is_refused(
    ctx: Context, make_line: Any, attested: attestations.Attestation, line: Any, field: str
) -> None:
    content = dsse.unverified(dsse.envelope_of(path(ctx, line)), "it")
    content["predicate"][field] = "stability" if field == "kind" else "f" * 64
    dsse.write(path(ctx, line), content, Trust.of(ctx.workspace).signer(EVALUATOR))
    found = attestations.about(ctx, line.checkpoint.digest)
    assert found.valid == {}
    assert len(found.faults) == 1


def test_a_statement_of_another_checkpoint_is_refused(
    ctx: Context, make_line: Any, line: Any, attested: attestations.Attestation
) -> None:
    other = make_line(2)
    target = path(ctx, other)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path(ctx, line).read_bytes())
    assert "about another subject" in attestations.about(ctx, other.checkpoint.digest).faults[0]


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"payload": "e30=", "payloadType": "x"})])
def test_garbage_is_a_fault(ctx: Context, line: Any, attested: attestations.Attestation, content: str) -> None:
    path(ctx, line).write_text(content)
    assert attestations.about(ctx, line.checkpoint.digest).valid == {}
    assert not attestations.is_attested(ctx, line.checkpoint.digest, line.evaluation)


def test_a_machine_without_the_key_states_nothing(ctx: Context, line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_KEY_EVALUATOR", "env:NOTHING")
    with pytest.raises(SignatureError, match="no private key"):
        attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, line.curated)
    assert list(attestations.about(ctx, line.checkpoint.digest).valid) == ["evaluation"]
