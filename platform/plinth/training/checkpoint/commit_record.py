"""Commit record of a checkpoint: an attestation of the digest of its manifest, signed with the trainer's key.

    step-00000100.json           DSSE envelope; subject RUN/step-00000100/manifest.json, predicate `Commit`
    step-00000100.events.json    in a bucket: DSSE envelope; subject RUN/step-00000100.events.jsonl, its timeline

The leading rank's writer signs the record. Its machine needs the pinned root and the trainer's key
(`plinth.trust.root`). Restore, resume, rollback, evaluation and export verify the record before they read or fetch
other files. A record is rejected if it is unsigned or belongs to another run, step or signer.

Does not belong here: the files of a checkpoint (checkpoint), the root of trust (plinth.trust).
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from pydantic import Field

from plinth.errors import CheckpointError, SignatureError
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training.directory import RunDirectory
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth.trust.signers import Signer

PREDICATE = "urn:plinth:checkpoint-commit:v1"
TIMELINE = "urn:plinth:checkpoint-timeline:v1"


class Commit(Frozen):
    """Content of a commit record."""

    run: str
    step: int = Field(ge=0)
    manifest_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)
    at: str  # UTC, ISO 8601


def trainer_of(run: RunDirectory) -> Signer:
    """Return this machine's key for signing the commits of a run. A job loads the key before its first step, to fail
    early.

    Raises:
        SignatureError: no root of trust is pinned on this machine, or it has no trainer key.
    """
    return _trust(run).signer(TRAINER)


def seal(run: RunDirectory, step: int, manifest_sha256: str, size: int) -> tuple[Commit, bytes]:
    """Return the content of a step's commit record, and the bytes of the signed record.

    Raises:
        SignatureError: no root of trust is pinned on this machine, or the trainer's key is missing or cannot be used.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    commit = Commit(run=run.root.name, step=step, manifest_sha256=manifest_sha256, bytes=size, at=now)
    content = dsse.statement(PREDICATE, {_subject(commit): manifest_sha256}, commit.model_dump(mode="json"))
    return commit, json.dumps(dsse.seal(content, trainer_of(run)), indent=1, sort_keys=True).encode()


def verified(run: RunDirectory, step: int, data: bytes, where: str) -> Commit:
    """Return the content of a commit record after checking that a trainer signed it for this step of this run.

    Raises:
        CheckpointError: the record is not signed, is signed by another key, or is about another run or step.
        SignatureError: no root of trust is pinned on this machine, so no record can be verified.
    """
    trust = _trust(run)
    try:
        content = dsse.opened(_envelope(data, where), trust.authority(TRAINER), PREDICATE, where)
    except SignatureError as error:
        raise _foreign(where, error.brief) from error
    commit = _commit(content, where)
    if (commit.run, commit.step) != (run.root.name, step):
        raise _foreign(where, f"the commit record is for step {commit.step} of run {commit.run}")
    if dsse.subjects(content) != {_subject(commit): commit.manifest_sha256}:
        raise _foreign(where, "the record has another subject")
    return commit


def seal_timeline(run: RunDirectory, step: int, events: bytes) -> bytes:
    """Sign the timeline that is uploaded with a checkpoint. The run's stability is later judged from it.

    Raises:
        SignatureError: no root of trust is pinned on this machine, or the trainer's key is missing or cannot be used.
    """
    content = dsse.statement(TIMELINE, {_events(run, step): hashlib.sha256(events).hexdigest()}, {})
    return json.dumps(dsse.seal(content, trainer_of(run)), indent=1, sort_keys=True).encode()


def require_timeline(run: RunDirectory, step: int, events: bytes, data: bytes, where: str) -> None:
    """Check that a trainer signed exactly this timeline for this step of this run.

    Raises:
        CheckpointError: the signature is missing, is by another key, or is for another timeline.
        SignatureError: no root of trust is pinned on this machine, so no signature can be verified.
    """
    trust = _trust(run)
    try:
        content = dsse.opened(_envelope(data, where), trust.authority(TRAINER), TIMELINE, where)
    except SignatureError as error:
        raise _foreign(f"the timeline of {where}", error.brief) from error
    if dsse.subjects(content) != {_events(run, step): hashlib.sha256(events).hexdigest()}:
        raise _foreign(f"the timeline of {where}", "the timeline differs, or belongs to another step")


def stated(data: bytes, where: str) -> Commit:
    """Return the content of a commit record without verifying it. Use it only to show sizes in lists.

    Raises:
        CheckpointError: the data is not a commit record.
    """
    try:
        return _commit(dsse.unverified(_envelope(data, where), where), where)
    except SignatureError as error:
        raise _foreign(where, error.what) from error


def _trust(run: RunDirectory) -> Trust:
    return Trust.of(Workspace(run.workspace))


def _subject(commit: Commit) -> str:
    return f"{commit.run}/step-{commit.step:08d}/manifest.json"


def _events(run: RunDirectory, step: int) -> str:
    return f"{run.root.name}/step-{step:08d}.events.jsonl"


def _envelope(data: bytes, where: str) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SignatureError(f"{where} is not a signed record", found=error) from error


def _commit(content: dict[str, object], where: str) -> Commit:
    try:
        return Commit.model_validate(content["predicate"])
    except (ValueError, KeyError) as error:
        raise SignatureError(f"{where} is not a commit record", found=error) from error


def _foreign(where: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is invalid: no trainer key of the pinned root of trust signed it for this run",
        found=found,
        expected="a record signed by the leading rank",
        remedy="an older checkpoint is used instead; find out who wrote this checkpoint (Plinth 0.3 did not sign "
        "checkpoints)",
    )
