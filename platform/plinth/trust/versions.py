"""Next version of a root: signed and published by one holder, or proposed, signed by others, and published.

A proposal is a file: the envelope of the next version with its signatures so far. It follows exactly one version, so it
becomes invalid when another version with its number is published. A machine signs one proposal per number. Signing a
second proposal needs confirmation, because two valid versions could be shown to different people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, root, signers
from plinth.trust.dsse import ROOT
from plinth.trust.root import ROOT_FILE, Root, Trust, version_path

#: File in the trust folder: digest of the signed proposal, by version number.
SIGNED_FILE = "signed-roots.json"


class Proposing(Frozen):
    """Path of a new proposal. `instead` permits the proposal even if this machine has signed another one with that
    number."""

    file: Path
    instead: bool = False


class RootProposal(Frozen):
    """Proposed next version of a root, with the signatures so far.

    Args:
        record: proposed version.
        before: previous version.
        signed_old, signed_new: identities of the keys with valid signatures, among the root keys of the previous
            version and of the new version.
    """

    record: Root
    before: Root
    signed_old: tuple[str, ...]
    signed_new: tuple[str, ...]

    @property
    def missing(self) -> str:
        """Description of the signatures that are still needed; empty if the proposal can be published."""
        lacks = []
        for version, signed in ((self.before, self.signed_old), (self.record, self.signed_new)):
            if (count := version.roles[ROOT].threshold - len(signed)) > 0:
                lacks.append(f"{count} by root keys of version {version.version}")
        return ", ".join(lacks)


def publish(workspace: Workspace, folder: Path, record: Root, before: Root | None) -> Trust:
    """Sign a version, store it and publish it. It is signed with all root keys on this machine that it or the previous
    version lists.

    Raises:
        SignatureError: too few root keys are on this machine, or another version with that number is published.
    """
    envelope = root.sign(record, _holders(folder, record, before))
    if before is None:
        return _put(workspace, folder, root.first(envelope, "the new root"), envelope)
    found = _proposal(envelope, record, before)
    what = f"this machine has too few root keys to sign version {record.version} of the root"
    _require_enough(found, what, "pass --propose FILE; other holders add their signatures with `plinth keys sign FILE`")
    return _put(workspace, folder, root.following(before, envelope, "the new root"), envelope)


def propose(trust: Trust, record: Root, file: Path, *, instead: bool = False) -> RootProposal:
    """Write the next version as a proposal, signed with the root keys of this machine.

    Raises:
        SignatureError: no root key is here, the file exists, or this machine signed another version with that number.
    """
    if file.exists():
        raise SignatureError(f"{file} already exists", remedy="use another file; proposals are never overwritten")
    holders = _holders(trust.folder, record, trust.root)
    _remember(trust.folder, record, instead=instead)
    return _write(file, root.sign(record, holders), record, trust.root)


def read(trust: Trust, file: Path) -> RootProposal:
    """Read a proposal for the next version of a trusted root.

    Raises:
        SignatureError: the file is not a root, not the next version, or not signed by any holder of the previous root.
    """
    return _read(trust, dsse.envelope_of(file), str(file))


def sign(workspace: Workspace, file: Path, *, expected: Root | None = None, instead: bool = False) -> RootProposal:
    """Add the signatures of this machine's root keys to a proposal.

    Args:
        expected: version that was shown to the holder.
        instead: True signs even if this machine has signed another proposal with that number.

    Raises:
        SignatureError: the proposal cannot be read (see `read`), no root key is on this machine, the file changed after
            it was shown, or another proposal with that number was signed.
    """
    envelope, folder = dsse.envelope_of(file), workspace.trust_folder
    found = _read(Trust.newest(workspace), envelope, str(file))
    if expected not in (None, found.record):
        raise SignatureError(f"{file} was changed after it was shown for review", remedy="review it again")
    holders = _holders(folder, found.record, found.before)
    _remember(folder, found.record, instead=instead)
    return _write(file, dsse.signed_also(envelope, *holders), found.record, found.before)


def publish_proposal(workspace: Workspace, file: Path) -> Trust:
    """Publish a proposal that has enough signatures. No key is needed.

    Raises:
        SignatureError: the proposal cannot be read (see `read`), there are too few signatures, or another version with
            that number is published.
    """
    envelope = dsse.envelope_of(file)
    found = _read(Trust.newest(workspace), envelope, str(file))
    _require_enough(
        found,
        f"{file} has too few signatures",
        "have the other holders of the root sign the proposal: `plinth keys sign FILE`",
    )
    trusted = root.following(found.before, envelope, str(file)).require_current()
    return _put(workspace, workspace.trust_folder, trusted, envelope)


def _require_enough(found: RootProposal, what: str, remedy: str) -> None:
    if found.missing:
        signed = sorted({*found.signed_old, *found.signed_new})
        raise SignatureError(
            what,
            found=", ".join(key_id[:12] for key_id in signed),
            expected=f"in addition: {found.missing}",
            remedy=remedy,
        )


def _read(trust: Trust, envelope: Mapping[str, Any], where: str) -> RootProposal:
    before = trust.root
    found = _proposal(envelope, root.next_of(before, envelope, where), before)
    if not found.signed_old:
        raise SignatureError(
            f"no holder of {before.title} has signed {where}",
            expected="a proposal signed by one of them",
            remedy="ask the sender which key signed the proposal; it may be forged",
        )
    return found


def _holders(folder: Path, record: Root, before: Root | None) -> list[signers.Signer]:
    """Return the root keys on this machine that the new or the previous version lists."""
    holders: dict[str, signers.Signer] = {}
    lacking = None
    for version in (record, before or record):
        for key_id in version.roles[ROOT].keys:
            try:
                holders.setdefault(key_id, Trust(folder, version).signer(ROOT, version.keys[key_id].owner))
            except SignatureError as error:  # lost, or elsewhere: the thresholds decide whether the others suffice
                lacking = error
    if not holders and lacking:
        raise lacking
    return list(holders.values())


def _proposal(envelope: Mapping[str, Any], record: Root, before: Root) -> RootProposal:
    old, new = (
        tuple(sorted(dsse.holding(envelope, version.authority(ROOT), record.title))) for version in (before, record)
    )
    return RootProposal(record=record, before=before, signed_old=old, signed_new=new)


def _write(file: Path, envelope: Mapping[str, Any], record: Root, before: Root) -> RootProposal:
    write_bytes(file, _encoded(envelope))
    return _proposal(envelope, record, before)


def _put(workspace: Workspace, folder: Path, found: Root, envelope: Mapping[str, Any]) -> Trust:
    place, data = version_path(workspace, found.version), _encoded(envelope)
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic.locked(place.parent / ".lock"):
        if found.version > 1 and place.exists():
            raise SignatureError(
                f"version {found.version} of root {found.name} is already published",
                found=str(place),
                remedy="inspect that version with `plinth keys show`, and repeat your change on top of it",
            )
        write_bytes(place, data)
    write_bytes(folder / ROOT_FILE, data, mode=0o600)
    return Trust(folder, found).pinned(replaced=found.version == 1)


def _remember(folder: Path, record: Root, *, instead: bool) -> None:
    path = folder / SIGNED_FILE
    with atomic.locked(folder / ".lock"):
        known = json.loads(path.read_bytes()) if path.exists() else {}
        earlier = known.get(str(record.version))
        if earlier not in (None, record.digest()) and not instead:
            raise SignatureError(
                f"this machine has signed another version {record.version} of root {record.name}",
                found=f"SHA-256 {earlier}",
                expected=f"SHA-256 {record.digest()}",
                remedy="if that proposal was abandoned and every copy deleted, pass --instead",
            )
        content = known | {str(record.version): record.digest()}
        write_bytes(path, json.dumps(content, indent=1, sort_keys=True).encode(), mode=0o600)


def _encoded(envelope: Mapping[str, Any]) -> bytes:
    return json.dumps(envelope, indent=1, sort_keys=True).encode()
