"""Signed attestation of a mean of checkpoints: its files and its committed parent checkpoints.

    runs/<run>/means/<digest 16>.json    DSSE envelope: subjects `checkpoint` (the manifest) and each of its files by
                                         SHA-256, predicate `MeanRecord`

The averaging process signs with the trainer's key after it has compared every byte of the parents with their signed
records. A mean with an attestation can be released like a checkpoint. A mean without an attestation cannot be
released. This module needs no torch.

Does not belong here: the arithmetic (averaging).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from plinth.errors import LineageError, SignatureError
from plinth.records import Frozen, Manifest
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint, commit_record
from plinth.training.directory import RunDirectory
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER, Authority, now
from plinth.trust.root import Trust

PREDICATE: Final = "urn:plinth:checkpoint-mean:v1"
#: `step` value of a mean's manifest, and prefix of the input keys of its parents.
AVERAGE, PARENT = "average", "checkpoint/"


class MeanParent(Frozen):
    """A parent checkpoint of a mean: its step, its weight in the mean, and the digest in its commit record."""

    step: int = Field(ge=1)
    weight: float = Field(gt=0)
    manifest_sha256: str


class MeanRecord(Frozen):
    """Content of the attestation of a mean of checkpoints."""

    run: str
    checkpoint: str = Field(description="Digest of the manifest of the averaged checkpoint.")
    of: Literal["weights", "ema"]
    parents: tuple[MeanParent, ...] = Field(min_length=1)
    files: Mapping[str, str] = Field(description="SHA-256 of each file of the averaged checkpoint, by file name.")
    at: str = Field(description="Time of the signature in UTC, as ISO 8601.")


def is_mean(one: Manifest) -> bool:
    """Return True if a manifest is marked as a mean of checkpoints."""
    return one.asset == "checkpoint" and one.step == AVERAGE


def in_words(mean: Manifest) -> str:
    """Return the description of a mean for people, for example `mean of the weights of steps 900, 950, 1000`."""
    params = mean.params
    steps, shares = ", ".join(str(one) for one in params["steps"]), params["weights"]
    kept = params["of"] == "ema"
    if kept and len(params["steps"]) == 1:
        return f"exponential moving average (EMA) of the weights at step {steps}"
    shown = f", weighted {', '.join(f'{one:g}' for one in shares)}" if len(set(shares)) > 1 else ""
    return f"mean of the {'EMAs' if kept else 'weights'} of steps {steps}{shown}"


def state(run: RunDirectory, mean: Manifest) -> None:
    """Sign the attestation that a manifest is the mean of the committed checkpoints that it names.

    Raises:
        CheckpointError: a parent is not committed by a trainer.
        SignatureError: this machine has no trainer key.
    """
    target = path(run, mean.digest)
    parents = tuple(
        MeanParent(step=step, weight=weight, manifest_sha256=_committed(run, step))
        for step, weight in zip(mean.params["steps"], mean.params["weights"], strict=True)
    )
    named = {"run": run.root.name, "checkpoint": mean.digest, "of": mean.params["of"], "at": now()}
    made = MeanRecord(**named, parents=parents, files=_files(mean))
    content = dsse.statement(PREDICATE, _subjects(made), made.model_dump(mode="json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    dsse.write(target, content, commit_record.trainer_of(run))


def path(run: RunDirectory, digest: str) -> Path:
    """Return the path of the attestation of the mean with this digest."""
    return run.means / f"{digest[:16]}.json"


def require(run: RunDirectory, mean: Manifest) -> MeanRecord:
    """Return the stored attestation of a mean of this run.

    Raises:
        LineageError: there is no attestation, or it belongs to another mean.
        SignatureError: no trainer signed it.
    """
    target = path(run, mean.digest)
    if not target.exists():
        raise _foreign(mean, f"no {target}")
    return opened(dsse.envelope_of(target), Trust.of(Workspace(run.workspace)).authority(TRAINER), mean)


def opened(envelope: Any, authority: Authority, mean: Manifest) -> MeanRecord:
    """Return the trainer's attestation of exactly this manifest: its files and its parents.

    Raises:
        LineageError: the attestation belongs to another mean.
        SignatureError: no trainer signed it.
    """
    content = dsse.opened(
        envelope, authority, PREDICATE, f"the attestation of the averaged checkpoint {mean.digest[:12]}"
    )
    try:
        found = MeanRecord.model_validate(content["predicate"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(
            f"the attestation of the averaged checkpoint {mean.digest[:12]} is invalid", found=error
        ) from error
    shares = [(one.step, one.weight) for one in found.parents]
    named = {"of": found.of, "steps": [step for step, _ in shares], "weights": [weight for _, weight in shares]}
    about = (found.run, found.checkpoint, dict(found.files), named, dsse.subjects(content))
    if about != (mean.stats.get("run_id"), mean.digest, _files(mean), dict(mean.params), _subjects(found)):
        raise _foreign(mean, f"an attestation for checkpoint {found.checkpoint[:12]} of run {found.run}")
    return found


def _files(mean: Manifest) -> dict[str, str]:
    return {part.name: part.blob.sha256 for part in mean.parts}


def _subjects(record: MeanRecord) -> dict[str, str]:
    return {"checkpoint": record.checkpoint, **record.files}


def _committed(run: RunDirectory, step: int) -> str:
    record = checkpoint.record_path(run, step)
    return commit_record.verified(run, step, record.read_bytes(), str(record)).manifest_sha256


def _foreign(mean: Manifest, found: str) -> LineageError:
    return LineageError(
        f"checkpoint {mean.digest[:12]} is not verified as an average of checkpoints",
        found=found,
        expected="an attestation signed by the trainer for these files and checkpoints",
        remedy="create the averaged checkpoint again: `plinth run checkpoint average RUN --steps …`",
    )
