"""Verdicts are verification summaries that in-toto's own library reads, signed by the promoter, and honest."""

from __future__ import annotations

import copy
import hashlib
import json
from datetime import UTC, datetime

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.vsa.v1 import vsa_pb2
from in_toto_attestation.v1.statement import Statement

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import PROMOTER, TRAINER
from plinth.trust.root import Trust
from plinth_registry import judgement, policy
from plinth_registry.candidate import Candidate, evidence_path
from plinth_registry.gates import GateResult, evaluate
from plinth_registry.gates.facts import Evidence
from tests.registry.gate_evidence import policy as strict
from tests.registry.gate_evidence import proof

AT = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def governing(ctx: Context) -> policy.SignedPolicy:
    return policy.sign(ctx, strict(without={"toxicity": "nobody could judge continuations"}))


def summary(found: Candidate, governing: policy.SignedPolicy, evidence: Evidence, **waived: str) -> dict[str, object]:
    results = evaluate(governing.policy, evidence, waived)
    return judgement.verdict_predicate(found, governing, results, {"plinth:///a": "b" * 64}, AT)


def test_it_says_who_verified_what_when_under_which_policy_from_which_evidence(
    unregistered: Candidate, governing: policy.SignedPolicy
) -> None:
    found = summary(unregistered, governing, proof())
    gates = found.pop(judgement.GATES)
    verifier = found.pop("verifier")
    assert found == {
        "timeVerified": "2026-11-23T12:00:30Z",
        "resourceUri": f"plinth:///models/{unregistered.directory.name}",
        "policy": {"uri": "plinth:///policies/demo/1", "digest": {"sha256": governing.digest}},
        "inputAttestations": [{"uri": "plinth:///a", "digest": {"sha256": "b" * 64}}],
        "verificationResult": "PASSED",
        "verifiedLevels": ["SLSA_BUILD_LEVEL_1", "PLINTH_GATES_PASSED"],
        "slsaVersion": "1.0",
    }
    assert isinstance(verifier, dict)
    assert verifier["id"] == "urn:plinth:registry"
    assert isinstance(gates, dict)
    assert [one["gate"] for one in gates["results"]] == list(governing.policy.asked)
    assert gates["not_asked"] == governing.policy.without
    assert gates["not_asked"]["toxicity"] == "nobody could judge continuations"


def test_levels_are_those_that_were_verified(unregistered: Candidate, governing: policy.SignedPolicy) -> None:
    refused = summary(unregistered, governing, proof(cost=None))
    assert (refused["verificationResult"], refused["verifiedLevels"]) == ("FAILED", ["SLSA_BUILD_LEVEL_1", "FAILED"])
    assert summary(unregistered, governing, proof(lineage=None))["verifiedLevels"] == ["FAILED"]
    let_through = summary(unregistered, governing, proof(cost=None), cost="waived by ada")
    assert let_through["verificationResult"] == "PASSED"
    assert let_through["verifiedLevels"] == ["SLSA_BUILD_LEVEL_1", "PLINTH_GATES_PASSED_WITH_WAIVERS"]
    (shown,) = (one for one in let_through[judgement.GATES]["results"] if one["gate"] == "cost")  # type: ignore[index]
    assert (shown["result"], shown["reason"], shown["waiver"]) == ("waived", "no evidence", "waived by ada")


def test_in_toto_reads_it(ctx: Context, unregistered: Candidate, governing: policy.SignedPolicy) -> None:
    results = evaluate(governing.policy, proof())
    facts = evidence_path(unregistered.directory, unregistered.key)
    path = judgement.sign_verdict(ctx, unregistered, governing, results, [facts], ["a waiver that expired"])
    content = dsse.read(path, Trust.of(ctx.workspace).authority(PROMOTER), judgement.VERDICT_PREDICATE)
    statement = json_format.ParseDict(content, Statement([], "", {}).pb)
    Statement.copy_from_pb(statement).validate()
    assert statement.predicate_type == "https://slsa.dev/verification_summary/v1"
    predicate = copy.deepcopy(content["predicate"])
    ours = predicate.pop(judgement.GATES)
    levels = predicate.pop("verifiedLevels")  # a list by the specification, one string in this library's message
    assert all(isinstance(one, str) for one in levels)
    del predicate["verifier"]["version"]  # of SLSA 1.0, which the message does not know
    parsed = json_format.ParseDict(predicate, vsa_pb2.VerificationSummary())
    assert parsed.time_verified.seconds > AT.timestamp() - 3600 * 24 * 365
    assert (parsed.verification_result, parsed.slsa_version) == ("PASSED", "1.0")
    assert parsed.policy.digest["sha256"] == governing.digest
    assert ours["did_not_count"] == ["a waiver that expired"]
    (read,) = content["predicate"]["inputAttestations"]
    assert read["uri"] == f"plinth:///models/{facts.name}"
    assert read["digest"] == {"sha256": hashlib.sha256(facts.read_bytes()).hexdigest()}
    assert judgement.read_verdict(ctx, unregistered) == content["predicate"]


def test_a_refusal_does_not_replace_the_verdict_that_released_a_candidate(
    ctx: Context, unregistered: Candidate, governing: policy.SignedPolicy
) -> None:
    passed = [GateResult(name="slices", passed=True, reason="good")]
    failed = [GateResult(name="slices", passed=False, reason="worse")]
    assert judgement.sign_verdict(ctx, unregistered, governing, failed, []) == judgement.verdict_path(unregistered)
    assert judgement.sign_verdict(ctx, unregistered, governing, passed, []) == judgement.verdict_path(unregistered)
    refused = judgement.sign_verdict(ctx, unregistered, governing, failed, [])
    assert refused.name.endswith(".refused.json")
    assert judgement.read_verdict(ctx, unregistered)["verificationResult"] == "PASSED"
    judgement.sign_verdict(ctx, unregistered, governing, passed, [])
    assert not refused.exists()


def test_a_verdict_of_another_candidate_or_by_another_role_is_refused(
    ctx: Context, unregistered: Candidate, governing: policy.SignedPolicy
) -> None:
    results = evaluate(governing.policy, proof())
    path = judgement.sign_verdict(ctx, unregistered, governing, results, [])
    content = dsse.read(path, Trust.of(ctx.workspace).authority(PROMOTER), judgement.VERDICT_PREDICATE)
    dsse.write(path, content, Trust.of(ctx.workspace).signer(TRAINER))
    with pytest.raises(SignatureError, match="is invalid"):
        judgement.read_verdict(ctx, unregistered)
    judgement.sign_verdict(ctx, unregistered, governing, results, [])
    other = unregistered.model_copy(update={"evaluation": "f" * 64})
    with pytest.raises(SignatureError, match="of another candidate"):
        judgement.read_verdict(ctx, other)
    envelope = json.loads(path.read_bytes())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
