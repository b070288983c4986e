"""A library that verifies signatures turns, and lets everything pass. Another one checks the same in another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.trust import dsse, signers
from plinth.trust.dsse import EVALUATOR, TRAINER
from plinth.trust.root import Trust
from plinth_registry import signing
from tests.attacks.test_promoter_key import FORM, require_refused, seal_anew
from tests.peers import Peer
from tests.registry.exports.conftest import SealedFolder
from tests.registry.exports.test_released import export as export_model
from tests.registry.exports.test_released import released

verifying = Peer("model_signing.verifying")

__all__ = ["released"]


def _passes(*_: Any, **__: Any) -> None:
    return None


def test_model_signing_that_verifies_everything_lets_no_changed_weight_out(
    released: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The evaluator hashes what it compares, and takes the digests from the trainer's other statement."""
    weights = next(released.workspace.models.glob("*/model.safetensors"))
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    monkeypatch.setattr(verifying.Config, "verify", _passes)
    signing.verify(weights.parent, Trust.of(released.workspace).authority(TRAINER))  # it turned
    assert export_model(released, "demo/2", tmp_path / "out") == 7
    assert "model.safetensors differs from the verified file" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_signature_verification_that_passes_everything_lets_no_forged_export_pass(
    export: SealedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both verifiers of exports have their own code for signatures."""
    at = export.copy(tmp_path / "copy")
    trust, genuine = Trust.of(export.ctx.workspace), dsse.envelope_of(at / FORM)
    envelope = dsse.seal(dsse.unverified(genuine, FORM), trust.signer(TRAINER))
    envelope["signatures"][0]["keyid"] = genuine["signatures"][0]["keyid"]
    (at / FORM).write_text(json.dumps(envelope, indent=1, sort_keys=True))
    seal_anew(export, at)
    monkeypatch.setattr(signers.PublicKey, "verifies", lambda *_: True)
    assert dsse.signed_by(envelope, trust.authority(EVALUATOR)) == ("evaluator",)  # it turned
    require_refused(export, at, f"the signature of {FORM} is invalid", capfd)
