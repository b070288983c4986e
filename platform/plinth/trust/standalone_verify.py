#!/usr/bin/env python3
"""Verify an exported model against a pinned root of trust: python3 standalone_verify.py DIRECTORY --root root.json

Operators of a model server can copy this single file. It needs Python 3.11 and `cryptography`, but no network, no
workspace and no other file of Plinth. It is faster with `blake3`. The exit status is 0 if the export is verified,
otherwise 1 with the reason on standard error. Exports of text or tokens are signed by the role compliance; verify them
with --data.

    EXPORT.json    DSSE envelope of an in-toto statement: digests of every other file, release, policy, root
    evidence/      DSSE envelopes, each signed by its role
    model.sig      OpenSSF model signature of the same files

No single key makes a release valid. The trainer signs the checkpoint and its files. The evaluator signs that the
exported files are this checkpoint. The policy owner signs the requirements, approvers sign approvals, and the promoter
signs the release.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

try:
    from blake3 import blake3
except ImportError:  # then SHA-256 is compared, which is signed as well
    blake3 = None  # type: ignore[assignment,misc]
EXPORT, RELEASE, MODEL_SIGNATURE = "EXPORT.json", "evidence/release.json", "model.sig"
ROOT_TYPE, EXPORT_TYPE, RELEASE_TYPE = "urn:plinth:root:v1", "urn:plinth:export:v1", "urn:plinth:release:v1"
PAYLOAD_TYPE, STATEMENT_TYPE = "application/vnd.in-toto+json", "https://in-toto.io/Statement/v1"
PAPERS_TYPE, DATA = "urn:plinth:papers:v1", "data"
SLSA_TYPE, VERDICT_TYPE = "https://slsa.dev/provenance/v1", "https://slsa.dev/verification_summary/v1"
APPROVAL_TYPE, LOGIN_TYPE = "urn:plinth:approval:v1", "urn:plinth:log:logins:v1"
EVIDENCE_TYPE, POLICY_TYPE = "urn:plinth:evidence:v1", "urn:plinth:gate-policy:v1"
MEASUREMENT_TYPE, FORMS = "urn:plinth:attestation:measurement:v1", "forms/"
_time = datetime.fromisoformat  # without a zone, comparing it is a TypeError
#: Role that signs each type. Other types are signed by the role in the export.
ROLES = {
    RELEASE_TYPE: "promoter", "urn:plinth:release-head:v1": "promoter", "urn:plinth:log:providers:v1": "compliance",
    VERDICT_TYPE: "promoter", SLSA_TYPE: "trainer", POLICY_TYPE: "policy", "urn:plinth:gate-waiver:v1": "policy",
    APPROVAL_TYPE: "approver", LOGIN_TYPE: "approver", EVIDENCE_TYPE: "trainer", PAPERS_TYPE: "compliance",
    "urn:plinth:launch-contract:v1": "owner",
    "urn:plinth:attestation:licences:v1": "compliance", "urn:plinth:attestation:personal_data:v1": "compliance",
    **{f"urn:plinth:attestation:{kind}:v1": "evaluator" for kind in ("measurement", "contamination", "resume")},
    **{f"urn:plinth:attestation:{kind}:v1": "trainer" for kind in ("stability", "cost")},
}  # fmt: skip


class RefusedExport(Exception):
    """Error for a rejected export or root; the message has the reason."""


class Said(NamedTuple):
    """Verified statement of the evidence, with its signers, their role, and the digests of its subjects."""

    kind: str
    predicate: dict[str, Any]
    role: str
    signers: list[str]
    about: dict[str, str]


def verify(
    directory: Path, root_file: Path, unreleased: bool = False, now: datetime | None = None, data: bool = False,
    same: Callable[[Path, dict[str, dict[str, str]], set[str]], None] | None = None,
) -> dict[str, Any]:
    """Verify an export (text or tokens if `data`) and return its description. `same` replaces the file check."""
    sealed = _json(root_file.read_bytes())
    root, own = (made := _statement(sealed, ROOT_TYPE))["predicate"], made["subject"][0]["digest"]["sha256"]
    _signers(sealed, root, "root", str(root_file))
    _require((now or datetime.now(UTC)) < _time(root["expires"]), f"{root['name']} expired on {root['expires']}")
    found = set(files_of(directory)) - {EXPORT}  # before reading: a pipe would block
    statement = _statement(sealed := _exact(directory / EXPORT), EXPORT_TYPE)
    stated, under = statement["predicate"], statement["predicate"]["root"]
    role = {"released": "promoter", DATA: "compliance"}.get(stated["status"], "trainer")
    signers = _signers(sealed, root, role, EXPORT, stated["at"])
    _require(data == (role == "compliance"), f"{stated['name']} is {'a model, not data' if data else 'not a model'}")
    _require(role != "trainer" or unreleased, f"{stated['name']} is {stated['status']}: it was never released")
    known = under["sha256"] == own if under["version"] == root["version"] else under["version"] < root["version"]
    _require(known and under["name"] == root["name"], f"signed under another root: {under['name']} {under['version']}")
    (same or _same_files)(directory, {one["name"]: one["digest"] for one in statement["subject"]}, found)
    files = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    _require(set(stated["evidence"]) <= set(files), "missing evidence")
    stated["papers"] = {name: files[name] for name in files if name == "README.md" or name.startswith("papers/")}
    said = {name: _evidence(directory, name, of, root, stated) for name, of in sorted(stated["evidence"].items())}
    if role != "compliance":
        _require_model_signature(directory, root, role, files, stated["at"])
    if role == "promoter":
        _require(RELEASE in said, "missing release record")
        _require_chain(list(said.values()), said[RELEASE].predicate, stated, files)
    return {
        "name": stated["name"], "status": stated["status"], "number": stated["number"], "policy": stated["policy"],
        "checkpoint": stated["checkpoint"], "release": files.get(RELEASE), "at": stated["at"],
        "root": f"{'demo root' if root['demo'] else 'root'} {root['name']} version {root['version']}",
        "signed_by": signers, "role": role, "files": len(files), "digests": files,
        "evidence": {name: f"{one.role}: {', '.join(one.signers)}" for name, one in said.items()}}  # fmt: skip


def digest_of(path: Path, kind: str = "sha256") -> str:
    """Return the SHA-256 or BLAKE3 of a regular file. Links are not followed."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb", buffering=0) as stream:
        if kind == "sha256":
            return hashlib.file_digest(stream, kind).hexdigest()
        whole = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(stream.fileno()).st_size else b""
        return blake3(whole, max_threads=blake3.AUTO).hexdigest()


def files_of(directory: Path) -> Iterator[str]:
    """Yield the names of all files below a directory. Empty folders, links and hard-linked files are rejected."""
    _require(bool(entries := sorted(os.scandir(directory), key=lambda each: each.name)), f"{directory} is empty")
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{name}" for name in files_of(Path(entry.path)))
            continue
        plain = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
        _require(plain, f"{entry.path} is not a regular file")
        yield entry.name


def _same_files(directory: Path, files: dict[str, dict[str, str]], found: set[str]) -> None:
    for name in sorted(found ^ set(files)):
        raise RefusedExport(f"{name} {'was added' if name in found else 'is missing'}")

    def holds(name: str) -> bool:
        kind = "blake3" if blake3 is not None and "blake3" in files[name] else "sha256"
        return digest_of(directory / name, kind) == files[name][kind]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, same in zip(files, pool.map(holds, files), strict=True):
            _require(same, f"{name} has changed")


def _evidence(directory: Path, name: str, role: str, root: dict[str, Any], stated: dict[str, Any]) -> Said:
    """Verify one statement of the evidence, which must be about this checkpoint."""
    found = _statement(sealed := _json((directory / name).read_bytes()))
    role = ROLES.get(found["predicateType"], role)
    signers = _signers(sealed, root, role, name, found["predicate"].get("at") or stated["released_at"])
    about = {one["name"]: one["digest"]["sha256"] for one in found["subject"]}
    _require(len(about) == len(found["subject"]), f"{name} has a duplicate subject")
    _require(about.get("checkpoint") in (None, stated["checkpoint"]), f"{name} is about another checkpoint")
    papers = {own: digest for own, digest in about.items() if own != "checkpoint"}
    _require(found["predicateType"] != PAPERS_TYPE or papers == stated["papers"], f"{name} is about other documents")
    if name == RELEASE:
        record, (model, _, version) = found["predicate"], stated["name"].rpartition("/")
        _require(found["predicateType"] == RELEASE_TYPE, f"{name} is not a release record")
        told = (record["model"], record["version"], record["number"], record["candidate"]["checkpoint"])
        _require(told == (model, version, stated["number"], stated["checkpoint"]), f"{name} belongs to another release")
    return Said(found["predicateType"], found["predicate"], role, signers, about)


def _require_chain(
    said: list[Said], record: dict[str, Any], stated: dict[str, Any], files: dict[str, str]
) -> None:
    """Verify the links from the trainer's checkpoint to the release. Each statement names its predecessor's digest."""
    about, governs = record["candidate"], record.get("policy", "")

    def link(what: str, holds: Callable[[Said], object], kind: str) -> Said:
        found = [one for one in said if one.kind == kind and holds(one)]
        _require(bool(found), f"{what}; export the release again")
        return found[0]

    def trains(one: Said) -> bool:
        made = one.predicate["buildDefinition"]["internalParameters"]["checkpoint"]
        return bool(made["digest"] == about["checkpoint"])

    def passes(one: Said) -> bool:
        policy, result = one.predicate["policy"]["digest"]["sha256"], one.predicate["verificationResult"]
        return (one.about, policy, result) == (about, governs, "PASSED")

    trained = link("no trainer attested this checkpoint", trains, SLSA_TYPE)
    facts = link("no trainer attested this candidate", lambda one: one.about == about, EVIDENCE_TYPE).predicate["facts"]
    measured = {"checkpoint": about["checkpoint"], "evaluation": about["evaluation"]}
    link("no evaluator measured this candidate", lambda one: one.about == measured, MEASUREMENT_TYPE)
    own = {name: digest for name, digest in files.items() if _is_model(name)}

    def converts(one: Said) -> bool:
        made, form = one.predicate["facts"], one.predicate["asset"].startswith(FORMS)
        source = made.get("source") if one.about.get("checkpoint") == about["checkpoint"] else None
        return bool(form and source and source.items() <= trained.about.items() and made["files"] == own)

    link("no evaluator attested that these files are this checkpoint", converts, MEASUREMENT_TYPE)
    under = {record["model"]: governs}
    policy = link("no policy governs this release", lambda one: one.about == under, POLICY_TYPE).predicate["policy"]
    _require(stated["policy"] == governs, f"{EXPORT} and the release record have different policies")
    link("no verdict passed this candidate", passes, VERDICT_TYPE)
    _require(policy.get("papers") != "signed" or any(one.kind == PAPERS_TYPE for one in said), "unsigned documents")
    asked, people = policy["approvals"], _approvers(said, policy["approvals"], about, governs)
    people -= {facts["requested_by"]} if asked["two_person"] else set()
    needed = max(asked["people"], 2) if asked["two_person"] else asked["people"]
    _require(len(people) >= needed, f"{len(people)} of {needed} approvals of this candidate; export the release again")


def _approvers(said: list[Said], asked: dict[str, Any], about: dict[str, str], governs: str) -> set[str]:
    """Return the approvers that the policy accepts. An approval is signed, or is a tag of a server that it names."""
    said = [one for one in said if one.about == about]
    given = [one for one in said if one.kind == APPROVAL_TYPE and "statement" in asked["accepted"]]
    decided = [(by, one.predicate) for one in given if (by := one.predicate["by"]) in one.signers]
    seen = [one for one in said if one.kind == LOGIN_TYPE and set(one.signers) & set(asked.get("proxies", ()))]
    tags = {
        (own["person"], own["tag"]): {"decision": own["value"].strip().lower(), "policy": own["policy"]}
        for one in sorted(seen, key=lambda each: int(each.predicate["number"]))
        if re.fullmatch(r"approval(\.\d+)?", (own := one.predicate["body"])["tag"]) and "tag" in asked["accepted"]
    }
    decided += [(person, own) for (person, _), own in tags.items()]
    people = {by for by, own in decided if (own["decision"], own["policy"]) == ("approved", governs)}
    return people & set(asked["approvers"]) if asked["approvers"] else people


def _is_model(name: str) -> bool:
    """Return True if a file is part of the loaded model: not a document, evidence or signature."""
    return name not in ("README.md", MODEL_SIGNATURE) and not name.startswith(("papers/", "evidence/"))


def _require_model_signature(directory: Path, root: dict[str, Any], role: str, files: dict[str, str], at: str) -> None:
    """Verify that the model signature, which is for other tools, covers the same files and has the same role."""
    sealed = _json((directory / MODEL_SIGNATURE).read_bytes())["dsseEnvelope"]
    payload = base64.b64decode(sealed["payload"], validate=True)
    resources = _json(payload)["predicate"]["resources"]
    found = {one["name"]: one["digest"] for one in resources}
    _require(len(found) == len(resources), f"{MODEL_SIGNATURE} has a duplicate file")
    expected = {name: digest for name, digest in files.items() if name != MODEL_SIGNATURE}
    _require(found == expected, f"{MODEL_SIGNATURE} covers other files")
    known = [root["keys"][key_id] for key_id in root["roles"][role]["keys"]]
    signatures = [base64.b64decode(one["sig"]) for one in sealed["signatures"]]
    holds = any(_holds(key, one, payload) for key in known for one in signatures if not _revoked(key, at))
    _require(holds, f"{MODEL_SIGNATURE} is not signed as {role}")


def _signers(sealed: dict[str, Any], root: dict[str, Any], role: str, where: str, at: str | None = None) -> list[str]:
    """Return the owners of the keys that signed an envelope. Every signature must be valid, and the number of keys
    must reach the role's threshold."""
    payload, known, owners = base64.b64decode(sealed["payload"], validate=True), root["roles"][role], dict[str, str]()
    for one in (each for each in sealed["signatures"] if where == EXPORT or each["keyid"] in known["keys"]):
        _require(one["keyid"] in known["keys"], f"{where} is not signed as {role}")
        key = root["keys"][one["keyid"]]
        _require(not _revoked(key, at), f"{where} is signed with a key of {key['owner']} that was revoked")
        _require(key["public"] not in owners, f"{where} has two signatures of one key")
        _require(_holds(key, base64.b64decode(one["sig"]), payload), f"the signature of {where} is invalid")
        owners[key["public"]] = key["owner"]
    needed = max(int(known["threshold"]), 1)
    _require(len(owners) >= needed, f"{where} has {len(owners)} signatures as {role}, {needed} are needed")
    return sorted(set(owners.values()))


def _revoked(key: dict[str, Any], at: str | None) -> bool:
    since = key["revoked_from"]
    return since is not None and (at is None or _time(at) >= _time(since))


def _holds(key: dict[str, Any], signature: bytes, payload: bytes) -> bool:
    """Return True if a signature of an envelope's payload is valid for a key."""
    kind = PAYLOAD_TYPE.encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    try:
        public: Any = load_pem_public_key(key["public"].encode())
        _require(isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1), "no P-256 key")
        public.verify(signature, signed, ECDSA(SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _statement(sealed: dict[str, Any], kind: str | None = None) -> dict[str, Any]:
    found = _json(payload := base64.b64decode(sealed["payload"], validate=True))
    written = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    _require(written.encode() == payload, "the statement is not canonical JSON")
    _require(sealed["payloadType"] == PAYLOAD_TYPE and found["_type"] == STATEMENT_TYPE, "not an in-toto statement")
    _require(kind in (None, found["predicateType"]), f"a statement of type {found['predicateType']}, not {kind}")
    return found


def _json(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Repeated keys are rejected, because parsers treat them differently."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _require(len(found := dict(pairs)) == len(pairs), "duplicate key in JSON")
        return found

    found: dict[str, Any] = json.loads(data, object_pairs_hook=unique)
    return found


def _exact(path: Path) -> dict[str, Any]:
    """Read an envelope, and reject it if its bytes differ from the serialization that Plinth writes."""
    found = _json(content := path.read_bytes())
    coded = [found["payload"], *(one["sig"] for one in found["signatures"])]
    same = all(base64.b64encode(base64.b64decode(each)).decode() == each for each in coded)
    same = same and all(set(one) == {"keyid", "sig"} for one in found["signatures"])
    same = same and json.dumps(found, indent=1, sort_keys=True).encode() == content
    _require(same and set(found) == {"payload", "payloadType", "signatures"}, f"{path.name} was rewritten")
    return found


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise RefusedExport(reason)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verify an exported model against a pinned root of trust.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="root of trust; never use a root from the export")
    parser.add_argument("--unreleased", action="store_true", help="accept an unreleased model")
    parser.add_argument("--data", action="store_true", help="verify an export of text or tokens, not of a model")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(verify(given.directory, given.root, given.unreleased, data=given.data), indent=1))
    except (RefusedExport, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"refused: {str(error) or type(error).__name__!a}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
