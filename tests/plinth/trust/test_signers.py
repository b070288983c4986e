"""A private key works from wherever it is kept, and is refused when it is not private or not the right one."""

from __future__ import annotations

import base64
import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, enrolment, root, signers
from plinth.trust.dsse import PROMOTER, TRAINER
from plinth.trust.root import Trust, owner_file

KIND = "urn:test:v1"

#: A key service as its command line: reads the bytes, prints the signature; the key never leaves it.
SERVICE = """
import base64, sys
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
key = load_pem_private_key(open(sys.argv[1], "rb").read(), None)
print(base64.b64encode(key.sign(sys.stdin.buffer.read(), ec.ECDSA(hashes.SHA256()))).decode())
"""


@pytest.fixture
def key_file(trust: Trust) -> Path:
    return trust.folder / "keys" / TRAINER / f"{TRAINER}.key"


def holds(trust: Trust) -> bool:
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {}), trust.signer(TRAINER))
    return bool(dsse.opened(envelope, trust.authority(TRAINER), KIND, "it"))


def test_a_key_in_the_environment(trust: Trust, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", key_file.read_text())
    monkeypatch.setenv(f"{root.KEY_VARIABLE}TRAINER", "env:SECRET")
    key_file.unlink()
    assert holds(trust)
    monkeypatch.delenv("SECRET")
    with pytest.raises(SignatureError, match="no private key in the environment variable SECRET"):
        trust.signer(TRAINER)


def test_a_key_behind_a_command(trust: Trust, key_file: Path, tmp_path: Path) -> None:
    script, kept = tmp_path / "service.py", tmp_path / "kept.pem"
    script.write_text(SERVICE)
    key_file.rename(kept)
    source = key_file.with_suffix(".source")
    source.write_text(f"command:{sys.executable} {script} {kept}\n")
    assert holds(trust)
    assert trust.signer(TRAINER).sign(b"bytes")
    source.write_text(f"command:{sys.executable} {script} {trust.folder / 'keys/promoter/promoter.key'}")
    with pytest.raises(SignatureError, match="is not allowed to sign as trainer"):
        trust.signer(TRAINER)
    source.write_text("command:false")
    with pytest.raises(SignatureError, match="signing command failed"):
        trust.signer(TRAINER)
    source.write_text(f"command:echo {base64.b64encode(b'nonsense').decode()}")
    with pytest.raises(SignatureError, match="is not allowed to sign as trainer"):
        trust.signer(TRAINER)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(trust: Trust, key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(SignatureError, match="others can read"):
        trust.signer(TRAINER)


def test_a_key_of_another_role_is_refused(trust: Trust, key_file: Path) -> None:
    key_file.write_bytes((trust.folder / "keys" / PROMOTER / f"{PROMOTER}.key").read_bytes())
    with pytest.raises(SignatureError, match="is not allowed to sign as trainer"):
        trust.signer(TRAINER)


def test_no_key_is_made_on_the_way(trust: Trust, key_file: Path) -> None:
    key_file.unlink()
    with pytest.raises(SignatureError, match="no private key of trainer as trainer"):
        trust.signer(TRAINER)
    assert not key_file.exists()


def test_a_key_is_never_written_over(workspace: Workspace, trust: Trust) -> None:
    with pytest.raises(SignatureError, match="never overwritten"):
        enrolment.new_key(trust.folder, TRAINER, TRAINER)


def test_garbage_is_not_a_key(trust: Trust, key_file: Path) -> None:
    key_file.write_bytes(b"garbage")
    with pytest.raises(SignatureError, match="not a private key"):
        trust.signer(TRAINER)
    with pytest.raises(SignatureError, match="not a public key"):
        signers.key_id_of("garbage")


@pytest.mark.parametrize("scheme", ["awskms:1", "nothing:x"])
def test_a_module_that_is_not_here_is_named(scheme: str, trust: Trust, key_file: Path) -> None:
    key_file.unlink()
    key_file.with_suffix(".source").write_text(scheme)
    with pytest.raises(SignatureError, match="no signer for"):
        trust.signer(TRAINER)


@pytest.mark.parametrize("name", ["", "   ", ".", "../trainer", "\udcff"])
def test_a_nameless_owner_has_no_key(name: str) -> None:
    with pytest.raises(SignatureError, match="name of a person"):
        owner_file(name)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_different_owners_never_share_a_file(one: str, other: str) -> None:
    try:
        names = owner_file(one), owner_file(other)
    except SignatureError:
        return
    assert (names[0] == names[1]) == (one.strip() == other.strip())
    assert "/" not in names[0]


def test_an_envelope_is_verified_once_and_what_differs_from_it_anew(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    real = dsse.public_key
    monkeypatch.setattr(dsse, "public_key", lambda pem, key: verified.append(key) or real(pem, key))
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {}), trust.signer(TRAINER))
    other = dsse.seal(dsse.statement(KIND, {"a": "1" * 64}, {}), trust.signer(TRAINER))
    trainer, promoter = trust.authority(TRAINER), trust.authority(PROMOTER)
    for _ in range(3):
        assert dsse.opened(envelope, trainer, KIND, "it")
    assert len(verified) == 1
    for _ in range(2):
        with pytest.raises(SignatureError, match="is invalid"):
            dsse.opened({**envelope, "payload": other["payload"]}, trainer, KIND, "it")
        with pytest.raises(SignatureError, match="is invalid"):
            dsse.opened(envelope, promoter, KIND, "it")
    assert len(verified) == 2  # the promoter's keys are not named in the envelope


def test_envelopes_and_identities_are_those_of_securesystemslib(trust: Trust) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

    signer = trust.signer(TRAINER)
    key = SSlibKey.from_crypto(load_pem_public_key(signer.public.encode()))
    assert key.keyid == signer.key_id
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {"of": "é"}), signer)
    theirs = Envelope.from_dict(copy.deepcopy(envelope))
    assert list(theirs.verify([key], 1)) == [signer.key_id]
    assert theirs.to_dict() == envelope


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "?"},
        {"payload": None},
        {"payloadType": 1},
        {"signatures": None},
        {"signatures": [{"keyid": "a"}]},
        {"signatures": [{"keyid": [], "sig": ""}]},
        {"signatures": [{"keyid": "a", "sig": "?"}]},
        {"signatures": [{"keyid": "a", "sig": ""}, {"keyid": "a", "sig": ""}]},
    ],
)
def test_what_is_not_an_envelope_is_refused(change: dict[str, Any], trust: Trust) -> None:
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {}), trust.signer(TRAINER)) | change
    with pytest.raises(SignatureError, match="is not a DSSE envelope"):
        dsse.holding(envelope, trust.authority(TRAINER), "it")


def test_a_signature_that_is_not_one_does_not_hold(trust: Trust) -> None:
    envelope = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {}), trust.signer(TRAINER))
    for signature in ("", base64.b64encode(b"nonsense").decode()):
        envelope["signatures"][0]["sig"] = signature
        assert dsse.holding(envelope, trust.authority(TRAINER), "it") == set()


def test_a_local_key_signs_and_verifies_without_the_clients_of_key_services(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from plinth.trust import signers
source = "file:{tmp_path / "own.key"}"
signer = signers.Signer("trainer", "own", source, signers.make_private_key(Path({str(tmp_path / "own.key")!r})))
assert signers.public_key(signer.public).verifies(signer.sign(b"text"), b"text")
assert not {{"securesystemslib", "boto3", "pkcs11"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_memory_of_signatures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsse, "MOST_PROVED", 2)
    monkeypatch.setattr(dsse, "_PROVED", {})
    monkeypatch.setattr(dsse, "_proved", lambda *_: frozenset({"key"}))
    for number in range(5):
        authority: Any = SimpleNamespace(keys={})
        dsse.holding({"payload": number}, authority, "a").clear()  # what a caller does to its answer changes nothing
        assert dsse.holding({"payload": number}, authority, "a") == {"key"}
    assert len(dsse._PROVED) <= 2
