"""Attack: a holder of exports passes one on. Only what a promoter signed is proved."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.trust import dsse, enrolment, standalone_verify
from plinth.trust.standalone_verify import EXPORT
from plinth_jobs.cli import call, generate
from plinth_registry import taint
from plinth_registry.candidate import Candidate
from plinth_registry.exports import MODEL_SIGNATURE, verify
from plinth_registry.exports import models as released
from tests.registry.conftest import moved
from tests.registry.exports.conftest import CLAIM, SealedFolder
from tests.registry.exports.test_offline import ALONE

#: Order of the group of P-256.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

Attack = Callable[[Path], object]


def refused(export: SealedFolder, at: Path) -> str:
    """Why both ways to verify refuse a folder."""
    with pytest.raises(SignatureError) as caught:
        verify(at, export.root)
    assert standalone_verify.main([str(at), "--root", str(export.root)]) == 1
    return str(caught.value.found)


@pytest.fixture
def newer(export: SealedFolder, tmp_path: Path) -> Path:
    """A second genuine export of the same release, with other weights."""
    return SealedFolder(export.ctx, tmp_path / "newer", export.root).write(tmp_path / "newer", CLAIM)


@pytest.mark.parametrize(
    "taken",
    [("model.safetensors",), ("model.safetensors", MODEL_SIGNATURE), ("papers/DATA_CARD.md", EXPORT),
     (EXPORT,), (EXPORT, MODEL_SIGNATURE), ("evidence/release.json", "evidence/approvals/anna.json", EXPORT)],
)  # fmt: skip
def test_parts_of_two_genuine_exports(
    export: SealedFolder, newer: Path, tmp_path: Path, taken: tuple[str, ...]
) -> None:
    verify(newer, export.root)
    at = export.copy(tmp_path / "mixed")
    for name in taken:
        shutil.copy(newer / name, at / name)
    assert "has changed" in refused(export, at)


def test_an_old_export_under_a_new_name_is_the_old_one(export: SealedFolder, tmp_path: Path) -> None:
    at = export.copy(tmp_path / "demo-99-final")
    proved = verify(at, export.root)
    assert (proved["name"], proved["number"], proved["at"]) == (
        "demo/2", 7, dsse.unverified(dsse.envelope_of(export.directory / EXPORT), "export")["predicate"]["at"]
    )  # fmt: skip


@pytest.mark.parametrize("fate", ["rolled back", "tainted"])
def test_an_old_export_of_a_version_that_is_gone(ctx: Context, unregistered: Candidate, fate: str) -> None:
    """Its signature stays valid forever. If the workspace is available, its history and its marks are checked too."""
    proved = {"name": "demo/1", "status": "released", "checkpoint": unregistered.checkpoint}
    moved(ctx, "champion", "1", unregistered.subjects)
    released.require_standing(ctx, proved)
    released.require_standing(ctx, proved | {"name": "another/1"})
    if fate == "tainted":
        taint.mark(ctx, unregistered.checkpoint, "ada", "a leak")
    else:
        moved(ctx, "withdrawn", None, unregistered.subjects, "1")
    with pytest.raises(GateError, match=fate):
        released.require_standing(ctx, proved)


def test_both_commands_ask_the_workspace_about_an_old_export(
    export: SealedFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    about = {"checkpoint": CLAIM.checkpoint}
    moved(export.ctx, "champion", "2", about)
    command = ["verify", str(export.directory), "-w", str(export.ctx.workspace.root)]
    assert call(command) == 0
    moved(export.ctx, "withdrawn", None, about, "2")
    assert call(command) == 8
    assert "demo/2 was rolled back" in capfd.readouterr().err
    with pytest.raises(GateError, match="was rolled back"):
        generate.engine(export.ctx, str(export.directory))


BESIDE = ("pytorch_model.bin", "papers/tokenizer.py", "evidence/.hidden.json", "model.safetensors ", "CONFIG.JSON",
          "config.json\u200b", "conﬁg.json", "\x1b[2J\x1b]0;verified\x07.py")  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_those_that_were_signed(
    export: SealedFolder, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    at = export.copy(tmp_path / "copy")
    (at / name).write_bytes(b"\x80\x04]\x94.")
    assert "was added" in refused(export, at)
    assert call(["verify", str(at), "--root", str(export.root)]) == 8
    assert not {"\x1b", "\x07"} & set("".join(capfd.readouterr()))


def _pipe(at: Path) -> None:
    (at / EXPORT).unlink()
    os.mkfifo(at / EXPORT)


def _link(at: Path) -> None:
    (at / EXPORT).rename(at.with_suffix(".json"))
    (at / EXPORT).symlink_to(at.with_suffix(".json"))


def _endless(at: Path) -> None:
    (at / EXPORT).unlink()
    (at / EXPORT).symlink_to("/dev/zero")


def _second_name(at: Path) -> None:
    os.link(at / EXPORT, at.with_suffix(".json"))


def test_a_statement_that_is_no_regular_file_is_not_read(export: SealedFolder, tmp_path: Path) -> None:
    """A pipe would make the verifier wait for ever, a device fill its memory."""
    program = "import runpy, sys; main = runpy.run_path(sys.argv[1])['main']\n" \
        "print([main([at, '--root', sys.argv[2]]) for at in sys.argv[3:]])"  # fmt: skip
    places = []
    for attack in (_pipe, _link, _endless, _second_name):
        places.append(export.copy(tmp_path / attack.__name__))
        attack(places[-1])
    limited = f'ulimit -v 4000000; exec {sys.executable} -I -c "$0" "$@"'
    command = ["bash", "-c", limited, program, str(ALONE), str(export.root), *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[0] == "[1, 1, 1, 1]"
    assert done.stderr.count("is not a regular file") == 4


def _envelope(at: Path, change: Callable[[str], str]) -> None:
    (at / EXPORT).write_text(change((at / EXPORT).read_text()))


def _twice(text: str) -> str:
    """A reader that takes the first of two equal keys sees a genuine payload, one that takes the last another."""
    forged = base64.b64encode(base64.b64decode(json.loads(text)["payload"]).replace(b"demo/2", b"demo/3")).decode()
    return text.replace('{\n "payload":', f'{{\n "payload": "{forged}",\n "payload":', 1)


FORMS: dict[str, Callable[[str], str]] = {
    "nested": lambda text: "[" * 200_000 + "]" * 200_000,
    "nested objects": lambda text: '{"payload":' * 100_000 + "1" + "}" * 100_000,
    "a long number": lambda text: f'{{"payload": {"9" * 100_000}}}',
    "not finite": lambda text: text.replace("[", "[NaN, ", 1),
    "nothing": lambda text: "",
    "null": lambda text: "null",
    "a list": lambda text: f"[{text}]",
    "no signature": lambda text: json.dumps({**json.loads(text), "signatures": {}}, indent=1, sort_keys=True),
    "a key twice": _twice,
    "a byte order mark": lambda text: "\ufeff" + text,
    "another payload type": lambda text: text.replace("application/vnd.in-toto+json", "application/json"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_statement_in_another_form(
    export: SealedFolder, tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    at = export.copy(tmp_path / "copy")
    _envelope(at, FORMS[form])
    refused(export, at)
    assert "Traceback" not in capfd.readouterr().err


def test_one_key_that_signs_twice_is_one_key(export: SealedFolder, tmp_path: Path) -> None:
    """A signature has a twin that holds as well: (r, -s). Neither that nor a copy makes two of one."""
    folder = export.root.parent
    enrolment.enrol(export.ctx.workspace, "promoter", "second", enrolment.new_key(folder, "promoter", "second"))
    enrolment.threshold(export.ctx.workspace, "promoter", 2)
    for number, twin in enumerate((lambda r, s: (r, s), lambda r, s: (r, ORDER - s))):
        at = export.copy(tmp_path / str(number))
        envelope = json.loads((at / EXPORT).read_bytes())
        (own,) = envelope["signatures"]
        other = encode_dss_signature(*twin(*decode_dss_signature(base64.b64decode(own["sig"]))))
        envelope["signatures"].append({**own, "sig": base64.b64encode(other).decode()})
        (at / EXPORT).write_text(json.dumps(envelope, indent=1, sort_keys=True))
        assert f"{EXPORT} has two signatures of one key" in refused(export, at)


def _thief(root: dict[str, Any]) -> None:
    """Another key among the promoter's."""
    (known,) = root["roles"]["approver"]["keys"]
    root["roles"]["promoter"]["keys"].append(known)


ROOTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a key more": _thief,
    "no threshold": lambda root: root["roles"]["promoter"].update(threshold=0),
    "for ever": lambda root: root.update(expires="9999-01-01T00:00:00+00:00"),
    "another key type": lambda root: root.update(demo=not root["demo"]),
    "another owner": lambda root: next(iter(root["keys"].values())).update(owner="ada@example.org"),
    "not revoked": lambda root: next(iter(root["keys"].values())).update(revoked_from=None, note=1),
    "its own signers": lambda root: root["roles"]["root"].update(threshold=0),
}


@pytest.mark.parametrize("change", ROOTS)
def test_a_root_that_was_edited_verifies_nothing(export: SealedFolder, tmp_path: Path, change: str) -> None:
    """The copy of the root that a serving team keeps is changed by an attacker without the root's key."""
    envelope = json.loads(export.root.read_bytes())
    content = json.loads(base64.b64decode(envelope["payload"]))
    ROOTS[change](content["predicate"])
    for signatures in (envelope["signatures"], []):
        payload = base64.b64encode(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).decode()
        edited = tmp_path / "edited.json"
        edited.write_text(json.dumps({**envelope, "payload": payload, "signatures": signatures}))
        with pytest.raises(SignatureError):
            verify(export.directory, edited)
        assert standalone_verify.main([str(export.directory), "--root", str(edited)]) == 1
