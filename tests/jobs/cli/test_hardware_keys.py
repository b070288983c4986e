"""A private key in a PKCS#11 token signs as its role; its PIN is nowhere but where it was given."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment, signers
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust

Plinth = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "keys.md"
PIN, KIND, SOURCE = "48291377", "urn:test:v1", "hsm:2?label=host-7"

pytestmark = pytest.mark.needs("PKCS#11 token")


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The token that the page makes; returns the page's commands of Plinth. The module reads its folder once."""
    folder = tmp_path_factory.mktemp("token")
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = block.splitlines()
    script = "\n".join(["set -eu", *(line for line in lines if not line.startswith("plinth ")), "env"])
    command = ["bash", "-c", script]
    done = subprocess.run(command, cwd=folder, input=f"{PIN}\n", capture_output=True, text=True, check=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYKCS11LIB", "SOFTHSM2_CONF"):
            patch.setenv(name, re.search(rf"^{name}=(.*)$", done.stdout, re.MULTILINE)[1])  # type: ignore[index]
        yield [line for line in lines if line.startswith("plinth ")]


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: list[str]) -> Trust:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    monkeypatch.setattr(signers, "_REFUSED", set())
    return enrolment.initialise(Workspace(tmp_path / "workspace").ensure(), "acme", [])


def test_the_pages_commands_enrol_a_key_that_signs_and_show_its_pin_to_nobody(
    plinth: Plinth, tmp_path: Path, trust: Trust, token: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signers.PIN_VARIABLE, PIN)
    said = ""
    for line in token:
        command, _, file = line.removeprefix("plinth ").partition(" > ")
        done = plinth(*shlex.split(command))
        assert done.code == 0, done.err
        said += done.out + done.err
        if file:
            Path(file).write_text(done.out)
    now = Trust.of(Workspace(tmp_path / "workspace"))
    signed = dsse.seal(dsse.statement(KIND, {"a": "0" * 64}, {"at": now.root.issued}), now.signer(TRAINER, "host-7"))
    assert dsse.opened(signed, now.authority(TRAINER), KIND, "it")
    assert dsse.signed_by(signed, now.authority(TRAINER)) == ("host-7",)
    assert "private key here" in plinth("keys", "show").out
    monkeypatch.setenv(signers.PIN_VARIABLE, "11111111")
    said += (refused := plinth("--debug", "keys", "new", "trainer", "other", "--source", "hsm:7?label=host-7")).err
    assert refused.code == 8
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not any(secret in content for content in [*files, said.encode()] for secret in (PIN.encode(), b"11111111"))


def test_a_wrong_pin_is_tried_once(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signers.PIN_VARIABLE, PIN)
    public = enrolment.note_key(trust.folder, TRAINER, "host-7", SOURCE)
    now = enrolment.enrol(Workspace(trust.folder.parent / "workspace"), TRAINER, "host-7", public)
    monkeypatch.setenv(signers.PIN_VARIABLE, "11111111")
    for expected in ("cannot be used\n.*PinIncorrect", "was rejected before"):
        with pytest.raises(SignatureError, match=expected):
            now.signer(TRAINER, "host-7")
    monkeypatch.setenv(signers.PIN_VARIABLE, PIN)
    assert now.signer(TRAINER, "host-7").sign(b"bytes")


@pytest.mark.parametrize("source", ["hsm:3?label=host-7", "hsm:2?label=nowhere", "hsm:x", "hsm:2?nothing", "awskms:1"])
def test_a_key_that_is_not_in_the_token_is_named_and_not_noted(
    trust: Trust, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv(signers.PIN_VARIABLE, PIN)
    with pytest.raises(SignatureError, match=re.escape(source)):
        enrolment.note_key(trust.folder, TRAINER, "host-7", source)
    assert not list(trust.folder.rglob("*.source"))


def test_the_pin_comes_from_a_private_file(trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pin"
    file.write_text(f"{PIN}\n")
    file.chmod(0o600)
    monkeypatch.setenv(signers.PIN_FILE_VARIABLE, str(file))
    assert signers.pin("it") == PIN
    file.chmod(0o644)
    with pytest.raises(SignatureError, match="others can read"):
        signers.pin("it")
    monkeypatch.delenv(signers.PIN_FILE_VARIABLE)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    with pytest.raises(SignatureError, match="no PIN for it"):
        signers.pin("it")


def test_the_pin_is_asked_for_once_at_a_terminal_and_not_shown() -> None:
    code = "from plinth.trust.signers import pin; print(pin('a key') == pin('a key') == '48291377')"
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    while b"PIN for" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, f"{PIN}\n".encode())
    while b"True" not in shown and b"False" not in shown:
        shown += os.read(terminal, 1024)
    os.waitpid(child, 0)
    assert (b"True" in shown, PIN.encode() in shown, shown.count(b"PIN for")) == (True, False, 1)
