"""Attack with the promoter's key: passing on an export. That key seals files; only their producers can identify
them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from plinth.trust import dsse, standalone_verify
from plinth.trust.dsse import APPROVER, EVALUATOR, PROMOTER, TRAINER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import EXPORT, RELEASE
from plinth_jobs.cli import call
from plinth_registry.exports import MODEL_SIGNATURE, seal
from tests.registry.exports.conftest import CLAIM, MODEL_FILES, SOURCE, SealedFolder

Change = Callable[[dict[str, Any]], object]
FORM, POLICY = "evidence/attestations/forms.hf-saved.json", "evidence/policy.json"
APPROVAL, VERDICT, SLSA = "evidence/approvals/anna.json", "evidence/verdict.json", "evidence/provenance.slsa.json"
MEASURED, FACTS = "evidence/attestations/evaluation.json", "evidence/evidence.json"
NOT_STATED = "no evaluator attested that these files are this checkpoint"


def seal_anew(export: SealedFolder, at: Path, evidence: Mapping[str, str] = CLAIM.evidence) -> None:
    """Sign a folder as it is, with the promoter's own key."""
    (at / EXPORT).unlink(missing_ok=True)
    seal(export.ctx, at, CLAIM.model_copy(update={"evidence": evidence}))


def require_refused(export: SealedFolder, at: Path, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Both verifiers refuse a folder, with a reason."""
    capfd.readouterr()
    assert call(["verify", str(at), "--root", str(export.root), "-w", str(at / "none")]) == 8
    assert reason in capfd.readouterr().err
    assert standalone_verify.main([str(at), "--root", str(export.root)]) == 1
    assert reason in capfd.readouterr().err


@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize("evidence", [CLAIM.evidence, {RELEASE: PROMOTER}], ids=["all evidence", "release.json"])
def test_exchanged_files_of_an_export_that_is_sealed_again(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, evidence: Mapping[str, str]
) -> None:
    at = export.copy(tmp_path / "copy")
    (at / name).write_bytes(b"others")
    if len(evidence) == 1:
        for path in (at / each for each in CLAIM.evidence if each not in evidence):
            path.unlink()
        for folder in ("approvals", "attestations"):
            (at / "evidence" / folder).rmdir()
    seal_anew(export, at, evidence)
    require_refused(export, at, NOT_STATED if len(evidence) > 1 else "no trainer attested this checkpoint", capfd)


def test_a_file_that_nobody_but_the_promoter_stated(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at = export.copy(tmp_path / "copy")
    (at / "modeling.py").write_text("import os")
    seal_anew(export, at)
    require_refused(export, at, NOT_STATED, capfd)


@pytest.mark.parametrize(
    ("name", "reason"),
    [(SLSA, "no trainer attested this checkpoint"), (FACTS, "no trainer attested this candidate"),
     (MEASURED, "no evaluator measured this candidate"), (FORM, NOT_STATED), (POLICY, "no policy governs this release"),
     (VERDICT, "no verdict passed this candidate"), (APPROVAL, "0 of 1 approvals of this candidate")],
)  # fmt: skip
def test_a_link_that_is_left_out(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    at = export.copy(tmp_path / "copy")
    (at / name).unlink()
    if not any((at / name).parent.iterdir()):
        (at / name).parent.rmdir()
    seal_anew(export, at, {each: role for each, role in CLAIM.evidence.items() if each != name})
    require_refused(export, at, f"{reason}; export the release again", capfd)


def _subject(name: str, digest: str = "f" * 64) -> Change:
    def change(content: dict[str, Any]) -> None:
        (own,) = [one for one in content["subject"] if one["name"] == name]
        own["digest"]["sha256"] = digest

    return change


def _fact(**facts: Any) -> Change:
    return lambda content: content["predicate"]["facts"].update(facts)


def _said(**changed: Any) -> Change:
    return lambda content: content["predicate"].update(changed)


def _asks(**approvals: Any) -> Change:
    return lambda content: content["predicate"]["policy"]["approvals"].update(approvals)


#: Genuine statements of other roles that are about something else, each with the reason of the refusal.
OTHERS: dict[str, tuple[str, str, Change, str]] = {
    "provenance of other files": (SLSA, TRAINER, _subject("model.safetensors"), NOT_STATED),
    "a form of files that nobody trained": (FORM, EVALUATOR, _fact(source={**SOURCE, "a": "1" * 64}), NOT_STATED),
    "a form without its source": (FORM, EVALUATOR, _fact(source={}), NOT_STATED),
    "files in another measurement": (FORM, EVALUATOR, _said(asset="tasks"), NOT_STATED),
    "an evaluation of another candidate": (
        MEASURED, EVALUATOR, _subject("evaluation"), "no evaluator measured this candidate"),
    "an approval of another candidate": (APPROVAL, APPROVER, _subject("candidate"), "0 of 1 approvals"),
    "a rejection": (APPROVAL, APPROVER, _said(decision="rejected"), "0 of 1 approvals"),
    "an approval under another policy": (APPROVAL, APPROVER, _said(policy="0" * 64), "0 of 1 approvals"),
    "an approval in another's name": (APPROVAL, APPROVER, _said(by="ben@example.org"), "0 of 1 approvals"),
    "a policy that asks for two": (POLICY, "policy", _asks(people=2), "1 of 2 approvals"),
    "a policy that names its approvers": (POLICY, "policy", _asks(approvers=["ben@example.org"]), "0 of 1 approvals"),
    "a policy that accepts tags": (POLICY, "policy", _asks(accepted=["tag"]), "0 of 1 approvals"),
    "a policy of another release": (POLICY, "policy", _subject("demo"), "no policy governs this release"),
    "a verdict that failed": (VERDICT, PROMOTER, _said(verificationResult="FAILED"), "no verdict passed"),
}  # fmt: skip


@pytest.mark.parametrize("link", OTHERS)
def test_genuine_statements_that_are_about_something_else(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], link: str
) -> None:
    name, role, change, reason = OTHERS[link]
    at = export.copy(tmp_path / "copy")
    content = dsse.unverified(dsse.envelope_of(at / name), name)
    change(content)
    owner = "anna@example.org" if role == APPROVER else None
    dsse.write(at / name, content, Trust.of(export.ctx.workspace).signer(role, owner))
    seal_anew(export, at)
    require_refused(export, at, reason, capfd)


def test_a_model_signature_of_another_export(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`EXPORT.json` names it as it is; other tools would verify it and see another model."""
    other, at = tmp_path / "other", export.copy(tmp_path / "copy")
    SealedFolder(export.ctx, other, export.root).write(other, CLAIM)
    shutil.copy(other / MODEL_SIGNATURE, at)
    content = dsse.unverified(dsse.envelope_of(at / EXPORT), EXPORT)
    (own,) = [one for one in content["subject"] if one["name"] == MODEL_SIGNATURE]
    own["digest"] = {"sha256": standalone_verify.digest_of(at / MODEL_SIGNATURE)}
    dsse.write(at / EXPORT, content, Trust.of(export.ctx.workspace).signer(PROMOTER))
    require_refused(export, at, "model.sig covers other files", capfd)


def test_a_model_signature_of_nobodys_key(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at = export.copy(tmp_path / "copy")
    bundle = json.loads((at / MODEL_SIGNATURE).read_bytes())
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = "MEUCIQ=="
    (at / MODEL_SIGNATURE).write_text(json.dumps(bundle))
    content = dsse.unverified(dsse.envelope_of(at / EXPORT), EXPORT)
    (own,) = [one for one in content["subject"] if one["name"] == MODEL_SIGNATURE]
    own["digest"] = {"sha256": standalone_verify.digest_of(at / MODEL_SIGNATURE)}
    dsse.write(at / EXPORT, content, Trust.of(export.ctx.workspace).signer(PROMOTER))
    require_refused(export, at, "model.sig is not signed as promoter", capfd)
