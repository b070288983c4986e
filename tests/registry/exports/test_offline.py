"""An export is refused after every change, by `plinth verify` and by the one file alone, which cannot import plinth."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import SignatureError
from plinth.provenance.statements import SLSA_PREDICATE
from plinth.trust import dsse, enrolment, standalone_verify
from plinth.trust.root import Trust
from plinth_jobs.cli import call
from plinth_registry import approval, judgement, policy, releases
from plinth_registry.candidate import EVIDENCE_PREDICATE
from plinth_registry.exports import ExportClaim, seal, verify
from tests.registry.exports.conftest import CHECKPOINT, CLAIM, Attack, SealedFolder, make_root

ALONE = Path(standalone_verify.__file__)
#: Runs the file in a process that cannot import plinth, nor BLAKE3, over many directories at once.
RUNNER = """
import json, runpy, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('plinth', 'plinth_registry', 'securesystemslib', 'pydantic', 'blake3'):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
module = runpy.run_path(sys.argv[1])
print(json.dumps([module['main']([place, '--root', sys.argv[2]]) for place in sys.argv[3:]]), file=sys.stderr)
"""


def alone(root: Path, *directories: Path) -> tuple[list[int], str]:
    """Exit statuses of the one file, and all it printed."""
    command = [sys.executable, "-I", "-c", RUNNER, str(ALONE), str(root), *map(str, directories)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, cwd="/")
    return json.loads(done.stderr.splitlines()[-1]), done.stdout + done.stderr


def flip(name: str) -> Attack:
    def attack(export: SealedFolder, at: Path) -> None:
        data = bytearray((at / name).read_bytes())
        data[len(data) // 2] ^= 1
        (at / name).write_bytes(data)

    return attack


def added(export: SealedFolder, at: Path) -> None:
    (at / "modeling.py").write_text("import os")


def added_hidden(export: SealedFolder, at: Path) -> None:
    (at / ".git").mkdir()
    (at / ".git" / "config").write_text("")


def added_folder(export: SealedFolder, at: Path) -> None:
    (at / "empty").mkdir()


def removed(export: SealedFolder, at: Path) -> None:
    (at / "model.safetensors").unlink()


def removed_folder(export: SealedFolder, at: Path) -> None:
    shutil.rmtree(at / "papers")


def renamed(export: SealedFolder, at: Path) -> None:
    (at / "config.json").rename(at / "Config.json")


def moved(export: SealedFolder, at: Path) -> None:
    (at / "config.json").rename(at / "papers" / "config.json")


def swapped(export: SealedFolder, at: Path) -> None:
    one, two = (at / "config.json").read_bytes(), (at / "papers" / "DATA_CARD.md").read_bytes()
    (at / "config.json").write_bytes(two)
    (at / "papers" / "DATA_CARD.md").write_bytes(one)


def linked(export: SealedFolder, at: Path) -> None:
    (at / "model.safetensors").unlink()
    (at / "model.safetensors").symlink_to(export.directory / "model.safetensors")


def linked_folder(export: SealedFolder, at: Path) -> None:
    shutil.rmtree(at / "papers")
    (at / "papers").symlink_to(export.directory / "papers")


def second_name(export: SealedFolder, at: Path) -> None:
    (at / "config.json").unlink()
    os.link(export.directory / "config.json", at / "config.json")


def pipe(export: SealedFolder, at: Path) -> None:
    (at / "config.json").unlink()
    os.mkfifo(at / "config.json")


def unsigned(export: SealedFolder, at: Path) -> None:
    rewrite(at, lambda envelope: envelope.update(signatures=[]))


def spaced(export: SealedFolder, at: Path) -> None:
    (at / "EXPORT.json").write_text((at / "EXPORT.json").read_text() + "\n")


def extended(export: SealedFolder, at: Path) -> None:
    rewrite(at, lambda envelope: envelope.update(note="trust me"))


def another_statement(export: SealedFolder, at: Path) -> None:
    shutil.copy(at / "evidence" / "release.json", at / "EXPORT.json")


def stated_anew(export: SealedFolder, at: Path) -> None:
    def forge(envelope: dict[str, Any]) -> None:
        payload = base64.b64decode(envelope["payload"]).replace(b'"demo/2"', b'"demo/3"')
        envelope["payload"] = base64.b64encode(payload).decode()

    rewrite(at, forge)


def rewrite(at: Path, change: Callable[[dict[str, Any]], object]) -> None:
    envelope = json.loads((at / "EXPORT.json").read_bytes())
    change(envelope)
    (at / "EXPORT.json").write_text(json.dumps(envelope, indent=1, sort_keys=True))


def restated(change: Callable[[dict[str, Any]], object]) -> Attack:
    """Another statement, signed with the promoter's key."""

    def attack(export: SealedFolder, at: Path) -> None:
        content = dsse.unverified(dsse.envelope_of(at / "EXPORT.json"), "export")
        change(content)
        dsse.write(at / "EXPORT.json", content, Trust.of(export.ctx.workspace).signer("promoter"))

    return attack


def outside(export: SealedFolder, at: Path) -> None:
    """Place evidence next to the directory, where it would be read."""
    shutil.copy(at / "evidence" / "release.json", at.parent / "beside.json")
    restated(lambda content: content["predicate"]["evidence"].update({"../beside.json": "promoter"}))(export, at)


def noted(envelope: dict[str, Any]) -> None:
    envelope["signatures"][0]["note"] = "trust me"


def spare_bits(envelope: dict[str, Any]) -> None:
    """Another text in base64 of the same bytes: the bits that the end of one does not use."""
    given = envelope["payload"]
    assert given.endswith("=")
    envelope["payload"] = next(
        other
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        if (other := given.rstrip("=")[:-1] + letter + "=" * given.count("=")) != given
        and base64.b64decode(other) == base64.b64decode(given)
    )


def coded_anew(export: SealedFolder, at: Path) -> None:
    for length in range(3):
        resealed("promoter", policy="p" * length)(export, at)
        if json.loads((at / "EXPORT.json").read_bytes())["payload"].endswith("="):
            break
    rewrite(at, spare_bits)


def resealed(role: str, **claim: object) -> Attack:
    """Sealed again, with the owner's key of a role that may not do so, or with another claim."""

    def attack(export: SealedFolder, at: Path) -> None:
        trust, wanted = Trust.of(export.ctx.workspace), CLAIM.model_copy(update=claim)
        (at / "EXPORT.json").unlink()
        seal(export.ctx, at, wanted)
        content = dsse.unverified(dsse.envelope_of(at / "EXPORT.json"), "export")
        (at / "EXPORT.json").unlink()
        dsse.write(at / "EXPORT.json", content, trust.signer(role))

    return attack


def foreign_evidence(named_as: str) -> Attack:
    """An approval that the promoter signed in place of a person."""
    own = "evidence/approvals/anna.json"

    def attack(export: SealedFolder, at: Path) -> None:
        content = dsse.unverified(dsse.envelope_of(at / own), "approval")
        dsse.write(at / own, content, Trust.of(export.ctx.workspace).signer("promoter"))
        resealed("promoter", evidence={**CLAIM.evidence, own: named_as})(export, at)

    return attack


def about_another(export: SealedFolder, at: Path) -> None:
    """An approval of another checkpoint."""
    path = at / "evidence" / "approvals" / "anna.json"
    content = dsse.statement("urn:plinth:approval:v1", {"checkpoint": "e" * 64}, {"at": CLAIM.released_at})
    dsse.write(path, content, Trust.of(export.ctx.workspace).signer("approver"))
    resealed("promoter")(export, at)


def another_type(export: SealedFolder, at: Path) -> None:
    """A statement with the fields of a release record that is none."""
    path = at / "evidence" / "release.json"
    content = dsse.unverified(dsse.envelope_of(path), "release") | {"predicateType": "urn:plinth:release-head:v1"}
    dsse.write(path, content, Trust.of(export.ctx.workspace).signer("promoter"))
    resealed("promoter")(export, at)


def other_record(export: SealedFolder, at: Path) -> None:
    """The record of another version of the release."""
    envelope = export.evidence(at, version="1")["evidence/release.json"]
    (at / "evidence" / "release.json").write_text(json.dumps(envelope, indent=1, sort_keys=True))
    resealed("promoter")(export, at)


def papers_signed(role: str, **changed: str) -> Attack:
    """A statement over papers: by the wrong role, or over other papers than lie there."""

    def attack(export: SealedFolder, at: Path) -> None:
        card = standalone_verify.digest_of(at / "papers" / "DATA_CARD.md")
        about = {"papers/DATA_CARD.md": card, "checkpoint": CHECKPOINT, **changed}
        content = dsse.statement(standalone_verify.PAPERS_TYPE, about, {"at": CLAIM.released_at})
        dsse.write(at / "evidence" / "papers.json", content, Trust.of(export.ctx.workspace).signer(role))
        resealed("promoter", evidence={**CLAIM.evidence, "evidence/papers.json": role})(export, at)

    return attack


ATTACKS: dict[str, Attack] = {
    **{f"a bit of {name}": flip(name) for name in (
        "config.json", "model.safetensors", "papers/DATA_CARD.md", "evidence/release.json",
        "evidence/approvals/anna.json", "model.sig", "EXPORT.json")},
    "a file added": added, "a hidden file added": added_hidden, "a folder added": added_folder, "removed": removed,
    "a folder removed": removed_folder,
    "renamed": renamed, "moved": moved, "swapped": swapped, "a symbolic link": linked, "a linked folder": linked_folder,
    "a hard link": second_name, "a pipe": pipe, "no signature": unsigned, "a byte after the end": spaced,
    "a field added": extended, "another statement": another_statement, "a forged name": stated_anew,
    "signed as trainer": resealed("trainer"), "signed as evaluator": resealed("evaluator"),
    "signed as approver": resealed("approver"), "signed as root": resealed("root"),
    "not a release record": resealed("promoter", evidence={}),
    "another checkpoint": resealed("promoter", checkpoint="d" * 64),
    "another number": resealed("promoter", number=8), "another name": resealed("promoter", name="demo/3"),
    "an approval of another checkpoint": about_another,
    "an approval of the promoter's": foreign_evidence("approver"), "named so": foreign_evidence("promoter"),
    "the record of another version": other_record,
    "papers that the promoter signed": papers_signed("promoter"),
    "a signature under other papers": papers_signed("compliance", **{"papers/DATA_CARD.md": "0" * 64}),
    "a signature under papers that are gone": papers_signed("compliance", **{"README.md": "0" * 64}),
    "evidence that is not in the seal": outside, "a record of another type": another_type,
    "a statement of another type": restated(lambda content: content.update(predicateType="urn:plinth:approval:v1")),
    "of another root": restated(lambda content: content["predicate"]["root"].update(name="other", version=0)),
    "a field added to a signature": lambda export, at: rewrite(at, noted), "coded anew": coded_anew,
}  # fmt: skip


def refused(at: Path, root: Path) -> bool:
    try:
        verify(at, root)
    except SignatureError:
        return True
    return False


def test_an_export_is_proved_with_the_root_alone(export: SealedFolder, tmp_path: Path) -> None:
    proved = verify(export.directory, export.root)
    assert (proved["name"], proved["number"]) == ("demo/2", 7)
    assert (proved["role"], proved["signed_by"]) == ("promoter", ["promoter"])
    assert proved["root"] == "root serving version 1"
    assert proved["evidence"]["evidence/approvals/anna.json"] == "approver: anna@example.org"
    shutil.move(export.ctx.workspace.root, tmp_path / "gone")
    statuses, printed = alone(export.root, export.directory)
    assert statuses == [0]
    assert '"checkpoint": "' + CHECKPOINT in printed
    assert call(["verify", str(export.directory), "--root", str(export.root), "-w", str(tmp_path / "none")]) == 0


def test_both_digests_are_signed_and_right(export: SealedFolder) -> None:
    from blake3 import blake3

    (export.directory / "config.json").chmod(0o644)
    for content in (b"", b"one", os.urandom(3 << 20)):
        (export.directory / "config.json").write_bytes(content)
        (export.directory / standalone_verify.EXPORT).unlink()
        export.seal(export.directory, CLAIM)
        content_of = dsse.unverified(dsse.envelope_of(export.directory / "EXPORT.json"), "export")
        found = {one["name"]: one["digest"] for one in content_of["subject"]}
        assert found["config.json"] == {
            "sha256": hashlib.sha256(content).hexdigest(), "blake3": blake3(content).hexdigest()}  # fmt: skip
        assert verify(export.directory, export.root)["digests"]["config.json"] == found["config.json"]["sha256"]


def test_every_attack_is_refused_by_both(export: SealedFolder, tmp_path: Path) -> None:
    places = []
    for number, (name, attack) in enumerate(ATTACKS.items()):
        at = export.copy(tmp_path / f"attack-{number}")
        attack(export, at)
        places.append(at)
        assert refused(at, export.root), f"accepted: {name}"
    untouched = export.copy(tmp_path / "untouched")
    by_owner = export.copy(tmp_path / "by-owner")
    papers_signed("compliance")(export, by_owner)
    statuses, printed = alone(export.root, *places, untouched, by_owner)
    assert dict(zip(ATTACKS, statuses, strict=False)) == dict.fromkeys(ATTACKS, 1)
    assert statuses[-2:] == [0, 0]  # or a copy alone would be refused
    assert "Traceback" not in printed


def test_the_reason_is_named(export: SealedFolder, tmp_path: Path) -> None:
    reasons = {"removed": "model.safetensors is missing", "a file added": r"modeling\.py was added",
               "a bit of config.json": r"config\.json has changed", "signed as trainer": "not signed as promoter",
               "an approval of the promoter's": "0 signatures as approver",
               "a signature under other papers": "papers.json is about other documents"}  # fmt: skip
    for name, reason in reasons.items():
        at = export.copy(tmp_path / name)
        ATTACKS[name](export, at)
        with pytest.raises(SignatureError, match=reason):
            verify(at, export.root)


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_byte_counts(export: SealedFolder, tmp_path: Path, stride: int) -> None:
    at = export.copy(tmp_path / "copy")
    for path in sorted(path for path in at.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for place in range(0, len(data), stride):
            changed = bytearray(data)
            changed[place] ^= 1 << (place % 8)
            path.write_bytes(changed)
            assert refused(at, export.root), f"{path.name}, byte {place}"
        path.write_bytes(data)
    verify(at, export.root)


def test_an_expired_root_is_refused(export: SealedFolder) -> None:
    later = datetime.now(UTC) + timedelta(days=366)
    with pytest.raises(standalone_verify.RefusedExport, match="serving expired on"):
        standalone_verify.verify(export.directory, export.root, now=later)


def test_another_root_of_the_same_name_is_refused(
    export: SealedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root(tmp_path / "foreign", monkeypatch)
    foreign = tmp_path / "foreign" / "trust" / "root.json"
    with pytest.raises(SignatureError, match="not signed as promoter"):
        verify(export.directory, foreign)
    assert alone(foreign, export.directory)[0] == [1]


def test_a_root_that_somebody_else_signed_is_refused(
    export: SealedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = dsse.unverified(dsse.envelope_of(export.root), "root")
    make_root(tmp_path / "foreign", monkeypatch)
    thief = Trust.of(make_root(tmp_path / "thief", monkeypatch, "serving").workspace).signer("root")
    dsse.write(tmp_path / "forged.json", content, thief)
    with pytest.raises(SignatureError, match="signatures as root"):
        verify(export.directory, tmp_path / "forged.json")


def test_a_revoked_key_is_refused_and_what_it_signed_before_is_not(export: SealedFolder, tmp_path: Path) -> None:
    trust = Trust.of(export.ctx.workspace)
    (key_id,) = trust.root.roles["promoter"].keys
    after = datetime.now(UTC) + timedelta(hours=1)
    enrolment.revoke(export.ctx.workspace, key_id, after)
    assert verify(export.directory, export.root)["root"] == "root serving version 2"
    enrolment.revoke(export.ctx.workspace, key_id, datetime(2026, 11, 2, tzinfo=UTC))
    with pytest.raises(SignatureError, match="a key of promoter that was revoked"):
        verify(export.directory, export.root)
    assert alone(export.root, export.directory)[0] == [1]


def test_a_key_that_was_revoked_after_the_release_still_counts_for_its_evidence(export: SealedFolder) -> None:
    trust = Trust.of(export.ctx.workspace)
    at, own = export.directory, "evidence/provenance.slsa.json"  # which states no time
    (key_id,) = trust.root.roles["trainer"].keys
    enrolment.revoke(export.ctx.workspace, key_id, datetime(2026, 11, 2, tzinfo=UTC))
    assert verify(at, export.root)["evidence"][own] == "trainer: trainer"
    enrolment.revoke(export.ctx.workspace, key_id, datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(SignatureError, match="a key of trainer that was revoked"):
        verify(at, export.root)


def test_as_many_keys_sign_as_the_root_asks_for(export: SealedFolder) -> None:
    workspace = export.ctx.workspace
    folder = export.root.parent
    enrolment.enrol(workspace, "promoter", "second", enrolment.new_key(folder, "promoter", "second"))
    verify(export.directory, export.root)
    enrolment.threshold(workspace, "promoter", 2)
    with pytest.raises(SignatureError, match=r"EXPORT\.json has 1 signatures as promoter, 2 are needed"):
        verify(export.directory, export.root)


def test_two_signatures_of_one_key_are_refused(export: SealedFolder, tmp_path: Path) -> None:
    sealed = dsse.envelope_of(export.root)
    twice = tmp_path / "twice.json"
    twice.write_text(json.dumps({**sealed, "signatures": sealed["signatures"] * 2}))
    with pytest.raises(SignatureError, match="has two signatures of one key"):
        verify(export.directory, twice)


def test_an_old_root_does_not_prove_what_a_newer_one_did(export: SealedFolder, tmp_path: Path) -> None:
    old = Path(shutil.copy(export.root, tmp_path / "old.json"))
    enrolment.renew(export.ctx.workspace)
    newer = SealedFolder(export.ctx, tmp_path / "newer", export.root)
    newer.write(newer.directory, CLAIM)
    assert verify(newer.directory, export.root)["root"].endswith("version 2")
    with pytest.raises(SignatureError, match="signed under another root: serving 2"):
        verify(newer.directory, old)


def test_what_is_unreleased_says_so_and_needs_a_word(export: SealedFolder, tmp_path: Path) -> None:
    claim = ExportClaim(name="run-1:5", status="UNRELEASED", checkpoint=CHECKPOINT)
    made = SealedFolder(export.ctx, tmp_path / "unreleased", export.root)
    made.write(made.directory, claim)
    with pytest.raises(SignatureError, match="run-1:5 is UNRELEASED"):
        verify(made.directory, export.root)
    assert verify(made.directory, export.root, unreleased=True)["role"] == "trainer"
    assert alone(export.root, made.directory)[0] == [1]


def test_a_demo_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_root(tmp_path / "owner", monkeypatch, "try", demo=True)
    made = SealedFolder(ctx, tmp_path / "model", tmp_path / "owner" / "trust" / "root.json")
    made.write(made.directory, CLAIM)
    assert verify(made.directory, made.root)["root"] == "demo root try version 1"
    assert "demo root" in alone(made.root, made.directory)[1]


def test_roles_are_those_of_the_registry() -> None:
    known = {approval.PREDICATE: "approver", releases.PREDICATE: "promoter", releases.HEAD_PREDICATE: "promoter",
             policy.PREDICATE: "policy", judgement.WAIVER_PREDICATE: "policy", judgement.VERDICT_PREDICATE: "promoter",
             SLSA_PREDICATE: "trainer", EVIDENCE_PREDICATE: "trainer"}  # fmt: skip
    assert known.items() <= standalone_verify.ROLES.items()


def test_one_file_of_at_most_330_lines() -> None:
    text = ALONE.read_text()
    assert len(text.splitlines()) <= 330
    lines = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    imported = {line.split()[1].partition(".")[0] for line in lines} - {"__future__"}
    assert imported - set(sys.stdlib_module_names) == {"cryptography"}
