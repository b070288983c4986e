"""A checkpoint as a signed directory: files out of the content store, provenance, signature.

The signature is written last: a directory without one is unfinished work and is made again from the
store, whose blobs are verified while they are copied. Copies, not links: a changed model must never
change the store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import LineageError
from plinth.model.hugging_face import required_files
from plinth.records import Manifest
from plinth.storage import locks
from plinth.storage.atomic import named_failures, replacing, sync_directory
from plinth.storage.state import checkout
from plinth.storage.store import Store
from plinth.trust.authority import TRAINER
from plinth.trust.root import Trust
from plinth_registry import signing


def path_of(ctx: Context, checkpoint: str) -> Path:
    """The path of a checkpoint manifest's model directory."""
    return ctx.workspace.models / checkpoint[:12]


def materialise(ctx: Context, checkpoint: Manifest, provenance: Mapping[str, Any]) -> Path:
    """The signed directory of a checkpoint, made unless it is there; verified in either case.

    Raises:
        SignatureError: it is there and has been changed.
        LineageError: it is there and belongs to another checkpoint, or the manifest lacks a file.
        IntegrityError, MissingError: a blob of the checkpoint has changed or is absent.
    """
    _require_files(checkpoint)
    target = path_of(ctx, checkpoint.digest)
    trust = Trust.of(ctx.workspace)
    with locks.locked(ctx.workspace.models / ".lock"):
        if not signing.is_signed(target):
            _build(ctx.store, target, checkpoint, provenance)
            subjects = {part.name: part.blob.sha256 for part in checkpoint.parts}
            own = hashlib.sha256(_encoded(provenance)).hexdigest()
            signing.sign(target, provenance, subjects | {signing.PROVENANCE_FILE: own}, trust.signer(TRAINER))
        found = signing.verify(target, trust.authority(TRAINER))
    if found["checkpoint"]["digest"] != checkpoint.digest:
        raise LineageError(
            f"{target} belongs to another checkpoint",
            found=found["checkpoint"]["digest"],
            expected=checkpoint.digest,
            remedy="move the directory away",
        )
    return target


def _require_files(checkpoint: Manifest) -> None:
    names = [part.name for part in checkpoint.parts]
    absent = [name for name in required_files(names) if name not in names]
    if absent:
        raise LineageError(
            f"checkpoint {checkpoint.digest} is not a model",
            found=f"files {', '.join(names) or 'none'}",
            expected=f"also {', '.join(absent)}",
        )
    if signing.PROVENANCE_FILE in names:
        raise LineageError(
            f"checkpoint {checkpoint.digest} brings its own {signing.PROVENANCE_FILE}",
            expected="none: it is written when the checkpoint is registered",
        )


def _build(store: Store, target: Path, checkpoint: Manifest, provenance: Mapping[str, Any]) -> None:
    """Fill a staging directory, then rename it."""
    staged = target.with_name(f".{target.name}.tmp")
    with named_failures(staged):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
    checkout(store, checkpoint.parts, staged, mode=0o444)
    with replacing(staged / signing.PROVENANCE_FILE, mode=0o444) as stream:
        stream.write(_encoded(provenance))
    with named_failures(target):
        signing.discard(target)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
        sync_directory(target.parent)


def _encoded(provenance: Mapping[str, Any]) -> bytes:
    return json.dumps(provenance, indent=1, sort_keys=True).encode()
