"""Attack with the evaluator's key: it can sign measurements and export contents, but cannot release a model."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from plinth.trust import dsse, enrolment, standalone_verify
from plinth.trust.dsse import EVALUATOR
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import EXPORT
from plinth_registry.exports import seal
from tests.attacks.test_promoter_key import APPROVAL, FORM, POLICY, SLSA, VERDICT, require_refused
from tests.registry.exports.conftest import CLAIM, MODEL_FILES, SealedFolder


def restated(export: SealedFolder, at: Path) -> None:
    """Other weights, and a statement of the evaluator that they hold the checkpoint."""
    (at / "model.safetensors").write_bytes(b"others")
    content = dsse.unverified(dsse.envelope_of(at / FORM), FORM)
    content["predicate"]["facts"]["files"] = {name: standalone_verify.digest_of(at / name) for name in MODEL_FILES}
    dsse.write(at / FORM, content, Trust.of(export.ctx.workspace).signer(EVALUATOR))


def test_exchanged_files_that_the_evaluator_stated(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Under the promoter's old seal, and under one of the evaluator's own."""
    at = export.copy(tmp_path / "copy")
    restated(export, at)
    require_refused(export, at, "has changed", capfd)
    (at / EXPORT).unlink()
    seal(export.ctx, at, CLAIM)
    content = dsse.unverified(dsse.envelope_of(at / EXPORT), EXPORT)
    dsse.write(at / EXPORT, content, Trust.of(export.ctx.workspace).signer(EVALUATOR))
    require_refused(export, at, f"{EXPORT} is not signed as promoter", capfd)


@pytest.mark.parametrize("name", [SLSA, POLICY, VERDICT, APPROVAL, "evidence/release.json", "evidence/evidence.json"])
def test_links_of_other_roles_that_the_evaluator_signed(
    export: SealedFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """Even where the promoter seals them, and names the evaluator as their role."""
    at = export.copy(tmp_path / "copy")
    content = dsse.unverified(dsse.envelope_of(at / name), name)
    dsse.write(at / name, content, Trust.of(export.ctx.workspace).signer(EVALUATOR))
    (at / EXPORT).unlink()
    seal(export.ctx, at, CLAIM.model_copy(update={"evidence": {**CLAIM.evidence, name: EVALUATOR}}))
    require_refused(export, at, f"{name} has 0 signatures as", capfd)


def test_statements_after_the_day_of_the_theft_count_no_more(
    export: SealedFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    (key_id,) = Trust.of(export.ctx.workspace).root.roles[EVALUATOR].keys
    enrolment.revoke(export.ctx.workspace, key_id, datetime(2026, 10, 1, tzinfo=UTC))
    require_refused(export, export.directory, "a key of evaluator that was revoked", capfd)
