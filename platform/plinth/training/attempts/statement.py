"""The statements of a run about itself: each start of its ranks, signed as trainer before they begin.

    runs/<run>/attempts/0001.json                      DSSE envelope: subject config.json, predicate `AttemptRecord`
    runs/<run>/checkpoints/step-00000100/attempts.json all statements up to this checkpoint

Each names the digest of the one before. A checkpoint's manifest lists `attempts.json`, and its commit record is signed:
so what was stated when the checkpoint was made cannot be taken away or exchanged later, and travels with it to a bucket
and back. A statement says what the trainer's process found; whoever controls that machine can make it say anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.errors import LineageError
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training.attempts.host import HostFacts
from plinth.training.directory import RunDirectory
from plinth.trust import dsse
from plinth.trust.authority import TRAINER, Authority
from plinth.trust.root import Trust

PREDICATE: Final = "urn:plinth:training-attempt:v1"
#: File of a checkpoint with every statement up to it.
BUNDLE: Final = "attempts.json"

Envelope = Mapping[str, Any]


class AttemptRecord(Frozen):
    """One start of the ranks of a run."""

    run: str
    key: str = Field(description="Identity of the run: its parameters and data.")
    number: int = Field(ge=1)
    previous: str = Field("", description="SHA-256 of the canonical envelope of the attempt before; empty: the first.")
    config_sha256: str = Field(description="Of config.json, with everything that this attempt was asked.")
    from_step: int = Field(ge=0, description="Newest committed step when it began.")
    ranks: int = Field(ge=1)
    nodes: int = Field(ge=1)
    hosts: tuple[HostFacts, ...] = Field(min_length=1, description="Machines, that of the leading rank first.")
    audit: bool = Field(False, description="It replays steps for the proof of resume and trains none.")
    at: str = Field(description="When it began: UTC, ISO 8601.")

    @property
    def silent_nodes(self) -> int:
        """Machines that had not said what they are when the attempt began."""
        return self.nodes - len(self.hosts)


def state(
    run: RunDirectory, config: bytes, key: str, *, ranks: int, nodes: int, hosts: Sequence[HostFacts], audit: bool
) -> AttemptRecord:
    """Sign and write the statement of an attempt that begins now.

    Args:
        config: content of config.json.
        key: identity of the run.

    Raises:
        LineageError: an earlier statement was changed or removed.
        SignatureError: this machine has no key as trainer.
    """
    trust, earlier = Trust.of(Workspace(run.workspace)), known(run)
    if earlier:
        opened(earlier, trust.authority(TRAINER), run.root.name)
    made = AttemptRecord(
        run=run.root.name,
        key=key,
        number=len(earlier) + 1,
        previous=fingerprint.digest(earlier[-1]) if earlier else "",
        config_sha256=hashlib.sha256(config).hexdigest(),
        from_step=max((int(one.stem.removeprefix("step-")) for one in _committed(run)), default=0),
        ranks=ranks,
        nodes=nodes,
        hosts=tuple(hosts),
        audit=audit,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    run.attempts.mkdir(parents=True, exist_ok=True)
    content = dsse.statement(PREDICATE, {"config.json": made.config_sha256}, made.model_dump(mode="json"))
    for number, envelope in enumerate(earlier, 1):  # on a machine that has only the checkpoint
        if not _path(run, number).exists():
            _path(run, number).write_bytes(fingerprint.canonical(envelope))
    dsse.write(_path(run, made.number), content, trust.signer(TRAINER))
    return made


def known(run: RunDirectory) -> list[Envelope]:
    """The envelopes of a run, in order: its own, or those in its newest committed checkpoint; nothing is verified."""
    own: list[Envelope] = [dsse.envelope_of(path) for path in sorted(run.attempts.glob("[0-9]*.json"))]
    kept = [record.with_suffix("") / BUNDLE for record in _committed(run)]
    return own or [*next((unpacked(path.read_bytes()) for path in reversed(kept) if path.exists()), ())]


def bundle(run: RunDirectory) -> bytes | None:
    """Content of the file that a checkpoint keeps; None where nothing was ever stated."""
    envelopes = known(run)
    return fingerprint.canonical({"attempts": envelopes}) if envelopes else None


def unpacked(data: bytes) -> tuple[Envelope, ...]:
    """The envelopes in such a file; nothing is verified.

    Raises:
        LineageError: it is not one.
    """
    try:
        found = json.loads(data)["attempts"]
        return tuple(dict(one) for one in found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LineageError(f"{BUNDLE} holds no statements of a run", found=error) from error


def opened(envelopes: Sequence[Envelope], authority: Authority, run: str) -> tuple[AttemptRecord, ...]:
    """The statements of a run, each signed by the trainer and following the one before.

    Raises:
        LineageError: there is none, one is missing or out of order, or they are of another run.
        SignatureError: the trainer did not sign one of them.
    """
    found = tuple(_opened(envelopes, authority))
    expected = [(run, at + 1, fingerprint.digest(envelopes[at - 1]) if at else "") for at in range(len(envelopes))]
    if not found or [(one.run, one.number, one.previous) for one in found] != expected:
        raise LineageError(
            f"the attempts of run {run} are not those that it stated",
            found=", ".join(f"{one.number} of {one.run}" for one in found) or "no statement",
            expected=f"statements 1 to {max(len(found), 1)} of {run}, each naming the one before",
            remedy="restore runs/<run>/attempts from a backup; without them the run has no provenance",
        )
    return found


def stated(envelope: Envelope, where: str) -> AttemptRecord:
    """What an envelope says; nothing is verified. For searches.

    Raises:
        LineageError, SignatureError: it is no statement of an attempt.
    """
    return _record(dsse.unverified(envelope, where), where)


def _opened(envelopes: Sequence[Envelope], authority: Authority) -> Iterator[AttemptRecord]:
    for number, envelope in enumerate(envelopes, 1):
        where = f"attempt {number}"
        content = dsse.opened(envelope, authority, PREDICATE, where)
        record = _record(content, where)
        if dsse.subjects(content) != {"config.json": record.config_sha256}:
            raise LineageError(f"{where} is about another configuration", found=dsse.subjects(content))
        yield record


def _record(content: Mapping[str, Any], where: str) -> AttemptRecord:
    try:
        return AttemptRecord.model_validate(content["predicate"])
    except (ValidationError, KeyError) as error:
        raise LineageError(f"{where} does not state an attempt", found=error) from error


def _committed(run: RunDirectory) -> list[Path]:
    return sorted(path for path in run.checkpoints.glob("step-*.json") if path.stem.removeprefix("step-").isdigit())


def _path(run: RunDirectory, number: int) -> Path:
    return run.attempts / f"{number:04d}.json"
