"""A Sigstore bundle over an export's statement, verified with what the verifier was given and no network."""

from __future__ import annotations

import base64
import copy
import json
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from plinth.errors import SignatureError
from plinth.trust import enrolment
from plinth.trust.dsse import PROMOTER, ROOT, TRAINER, SigstoreIdentity
from plinth.trust.root import Trust
from plinth_jobs.cli import call
from plinth_registry.exports import verify_bundle
from tests.registry.exports.conftest import SealedFolder
from tests.sigstore_instance import LocalSigstore, b64, recently

WHO, ISSUER = "https://git.example/acme/llm/release.yml@refs/heads/main", "https://issuer.example"
AT = recently()
RELEASER = SigstoreIdentity(identity=WHO, issuer=ISSUER)


class Signed:
    """An export, a Sigstore instance that its verifier trusts, and a bundle of its statement."""

    def __init__(self, export: SealedFolder, folder: Path) -> None:
        self.export, self.folder = export, folder
        enrolment.name(export.ctx.workspace, PROMOTER, RELEASER)
        self.instance = LocalSigstore(AT - timedelta(days=9))
        self.trusted = self.instance.trusted_root(folder / "trusted_root.json")
        envelope = json.loads((export.directory / "EXPORT.json").read_bytes())
        self.payload = base64.b64decode(envelope["payload"])
        self.good = self.instance.bundle(self.payload, WHO, ISSUER, AT)

    def proved(self, bundle: Any, role: str = PROMOTER) -> Any:
        path = self.folder / "bundle.json"
        path.write_text(bundle if isinstance(bundle, str) else json.dumps(bundle))
        return verify_bundle(self.export.directory, self.export.root, path, self.trusted, role)

    def changed(self, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        bundle = copy.deepcopy(self.good)
        change(bundle)
        return bundle


@pytest.fixture
def signed(export: SealedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Signed:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return Signed(export, tmp_path)


def test_a_bundle_of_whom_the_root_names_is_verified_offline(signed: Signed, capfd: pytest.CaptureFixture[str]) -> None:
    proof = signed.proved(signed.good)
    assert (proof.identity, proof.issuer, proof.role, proof.at) == (WHO, ISSUER, PROMOTER, AT.isoformat())
    path = str(signed.folder / "bundle.json")
    command = ["verify", str(signed.export.directory), "--root", str(signed.export.root), "--sigstore", path]
    assert call([*command, "--trusted-root", str(signed.trusted)]) == 0
    shown = capfd.readouterr().out
    assert f"Signed through Sigstore by {WHO} ({ISSUER}) as promoter, logged at {AT.isoformat()}" in shown
    assert call(command) == 2
    Path(path).write_text(json.dumps(signed.instance.bundle(b"{}", WHO, ISSUER, AT)))
    assert call([*command, "--trusted-root", str(signed.trusted)]) == 8


def test_every_other_bundle_is_refused(signed: Signed) -> None:
    other, make = LocalSigstore(AT - timedelta(days=9)), signed.instance.bundle
    again = make(signed.payload, WHO, ISSUER, AT)
    late = str(int(AT.timestamp()) + 60)

    def entry(bundle: dict[str, Any]) -> dict[str, Any]:
        return bundle["verificationMaterial"]["tlogEntries"][0]  # type: ignore[no-any-return]

    def logged(*entries: dict[str, Any]) -> dict[str, Any]:
        return signed.changed(lambda b: b["verificationMaterial"].update(tlogEntries=list(entries)))

    attacks: list[tuple[str, Any]] = [
        ("signs another statement", make(b'{"_type": "x"}', WHO, ISSUER, AT)),
        ("payload of type text/plain", make(signed.payload, WHO, ISSUER, AT, payload_type="text/plain")),
        ("SANs do not match", make(signed.payload, WHO.replace("main", "dev"), ISSUER, AT)),
        ("got 'https://issuer.evil'", make(signed.payload, WHO, "https://issuer.evil", AT)),
        ("certificate chain", other.bundle(signed.payload, WHO, ISSUER, AT)),
        ("not valid at validation time", make(signed.payload, WHO, ISSUER, AT, issued=AT - timedelta(minutes=11))),
        ("DSSE: invalid signature", signed.changed(lambda b: b["dsseEnvelope"].update(payload=b64(b"{}")))),
        ("DSSE: invalid signature", signed.changed(lambda b: b.update(dsseEnvelope=again["dsseEnvelope"]))),
        ("one log entry", logged()),
        ("log entry signatures", logged(entry(again))),
        ("inclusion promise", signed.changed(lambda b: entry(b).pop("inclusionPromise"))),
        ("inclusion promise", signed.changed(lambda b: entry(b).update(integratedTime=late))),
        ("invalid root hash", signed.changed(lambda b: entry(b)["inclusionProof"].update(hashes=[b64(b"0" * 32)]))),
        ("failed to load bundle", "nonsense"),
    ]
    for reason, bundle in attacks:
        with pytest.raises(SignatureError, match=reason):
            signed.proved(bundle)
    assert signed.proved(signed.good)


@pytest.mark.parametrize("service", ["ca", "ct", "log"])
def test_another_service_is_not_believed(signed: Signed, service: str) -> None:
    other = LocalSigstore(AT - timedelta(days=9))
    setattr(signed.instance, service, getattr(other, service))
    with pytest.raises(SignatureError, match="is invalid"):
        signed.proved(signed.instance.bundle(signed.payload, WHO, ISSUER, AT))


def test_an_identity_counts_for_its_role_until_it_is_dropped(signed: Signed) -> None:
    with pytest.raises(SignatureError, match="has no Sigstore identity as trainer"):
        signed.proved(signed.good, TRAINER)
    workspace = signed.export.ctx.workspace
    digest = Trust.of(workspace).root.digest()
    enrolment.name(workspace, TRAINER, RELEASER)
    assert signed.proved(signed.good, TRAINER).role == TRAINER
    enrolment.drop(workspace, PROMOTER, RELEASER)
    with pytest.raises(SignatureError, match="has no Sigstore identity as promoter"):
        signed.proved(signed.good)
    for role in (PROMOTER, ROOT):
        with pytest.raises(SignatureError, match="does not have this Sigstore identity"):
            (enrolment.drop if role == PROMOTER else enrolment.name)(workspace, role, RELEASER)
    left = enrolment.drop(workspace, TRAINER, RELEASER).root
    assert "identities" not in left.model_dump(mode="json")  # as roots were before there were any
    assert left.digest() != digest
