"""Exports of text, tokens and files of a manifest. Tainted data is refused, and each export is recorded and signed.

`EXPORT.json` names every file with its SHA-256, and the manifests that the files come from. The compliance key signs
it, and its owner also states the terms of the text; no key of the promoter or trainer is needed. The target is a folder
or a URI. Files that were signed at the target before are kept in the next statement, so that several exports can share
a folder. `verify` rejects files that were not exported.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from plinth.compute.context import Context
from plinth.errors import GateError, PlinthError, SignatureError, StorageError
from plinth.provenance.statements import Chain
from plinth.records import Frozen, Manifest
from plinth.storage.uris import read_file, sizes, write_file
from plinth.trust import dsse, standalone_verify
from plinth.trust.dsse import COMPLIANCE, now
from plinth.trust.root import Trust
from plinth.trust.signers import Signer
from plinth.trust.standalone_verify import DATA, EXPORT, EXPORT_TYPE, RefusedExport
from plinth_registry import taint
from plinth_registry.audit_log import AuditedAction, audited
from plinth_registry.exports import ExportRoot, record


def leave(ctx: Context, manifests: Iterable[Manifest], to: str, *, unreleased: bool = False) -> None:
    """Check that manifests may be exported, and record the export. Call this function before the first byte is written.

    Args:
        to: folder or URI.
        unreleased: True to allow a checkpoint that is not a release.

    Raises:
        GateError: a manifest or one of its inputs is tainted, or a manifest is a checkpoint.
        SignatureError: the taint log does not verify.
    """
    going = list(manifests)
    marks = taint.marks_on(ctx, Chain(links=()), [one.digest for one in going])
    if marks:
        raise GateError(
            f"the export to {to} includes tainted data",
            found="; ".join(mark.removeprefix("evidence: ") for mark in marks),
            remedy="exclude the tainted data, or rebuild it without the tainted input",
        )
    for one in going:
        if one.asset == "checkpoint" and not unreleased:
            raise GateError(
                f"{one.digest[:12]} is a checkpoint",
                expected="a release, which is exported with `plinth export model`",
                remedy="use --unreleased to export the files of a checkpoint",
            )
    for one in going:
        status = "UNRELEASED" if one.asset == "checkpoint" else "data"
        record(ctx, name=one.asset, status=status, subject=one.digest, to=to)


#: Size limit of the envelope; enough for more than a hundred thousand files.
MOST_BYTES = 1 << 28


class SignedFiles(Frozen):
    """Signed files of an export: SHA-256 by file name, digests of the source manifests by asset, and names of the
    exports."""

    names: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    materials: Mapping[str, str] = {}


class DataStatement(Frozen):
    """Predicate of the statement of exported text and tokens. The fields that only models have are None or empty.

    Args:
        materials: digests of the source manifests by asset.
    """

    name: str
    status: Literal["data"] = "data"
    exports: tuple[str, ...]
    materials: Mapping[str, str]
    evidence: Mapping[str, str] = {}
    at: str
    root: ExportRoot
    checkpoint: None = None
    number: None = None
    policy: None = None
    released_at: None = None


class DataSeal:
    """Signer of exported files. Without a key, nothing is signed."""

    def __init__(self, ctx: Context, to: str, name: str, signer: Signer | None = None) -> None:
        self._ctx, self._to, self._name, self._signer = ctx, to.rstrip("/"), name, signer
        self._before = _signed_before(ctx, self._to) if signer else SignedFiles()

    def sign(self, files: Mapping[str, str], materials: Mapping[str, str]) -> str | None:
        """Write the signed `EXPORT.json` after all other files; return its SHA-256.

        Args:
            files: SHA-256 of all written files, by name below the target.
            materials: digests of the source manifests.
        """
        if self._signer is None:
            return None
        there = sizes(self._to)
        kept = {name: own for name, own in self._before.files.items() if name in there}
        stays = self._before if set(kept) - set(files) else SignedFiles()
        names = sorted({*stays.names, self._name})
        stated = DataStatement(
            name=", ".join(names),
            exports=tuple(names),
            materials={**stays.materials, **materials},
            at=now(),
            root=ExportRoot.of(Trust.of(self._ctx.workspace).root),
        )
        statement = dsse.statement(EXPORT_TYPE, kept | dict(files), stated.model_dump(mode="json"))
        sealed = json.dumps(dsse.seal(statement, self._signer), indent=1, sort_keys=True).encode()
        write_file(f"{self._to}/{EXPORT}", lambda out: out.write(sealed))
        return hashlib.sha256(sealed).hexdigest()


@contextmanager
def leaving(
    ctx: Context, manifests: Iterable[Manifest], to: str, name: str, *, unsigned: bool = False
) -> Iterator[DataSeal]:
    """Check that the manifests may be exported, record the export, and yield the signer of the exported files.

    Args:
        name: name of the export, such as `tokens of web`.
        unsigned: True to sign nothing; the export is then only recorded in `exports/`.

    Raises:
        GateError: the export includes tainted data or a checkpoint.
        SignatureError: no root is pinned, or no compliance key is on this machine.
        StorageError: the target has an export that would be overwritten.
    """
    if unsigned:
        leave(ctx, manifests, to)
        yield DataSeal(ctx, to, name)
        return
    with audited(ctx, AuditedAction("export data", name, getpass.getuser(), f"to {to}")):
        try:
            signer = Trust.of(ctx.workspace).signer(COMPLIANCE)
        except SignatureError as error:
            remedy = f"{error.remedy}; or use --unsigned, but then the export cannot be verified elsewhere"
            raise SignatureError(error.what, found=error.found, expected=error.expected, remedy=remedy) from error
        seal = DataSeal(ctx, to, name, signer)
        leave(ctx, manifests, to)
        yield seal


def is_signed(to: str) -> bool:
    """Return True if a folder or URI claims to be a signed export. The claim is not verified."""
    return EXPORT in sizes(to)


def verify(to: str, root: Path) -> dict[str, Any]:
    """Verify an export of text or tokens with only the root of trust. Every file is checked, and the export may have no
    other files.

    Raises:
        SignatureError: a file, the statement, its signer or the root is invalid.
        StorageError: the target cannot be read.
    """
    place = to.rstrip("/")
    try:
        if "://" not in place:
            return standalone_verify.verify(Path(place), root, data=True)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / EXPORT).write_bytes(_content(f"{place}/{EXPORT}"))
            return standalone_verify.verify(
                Path(folder), root, data=True, same=lambda _, files, __: _same_files(place, files)
            )
    except (RefusedExport, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureError(
            f"{to} is not a verified export of text or tokens",
            found=str(error) or type(error).__name__,
            expected=f"exactly the files that a {COMPLIANCE} key of the root in {root} signed",
            remedy="do not use this export; export the data again into an empty folder",
        ) from error


def _same_files(place: str, files: Mapping[str, Mapping[str, str]]) -> None:
    """Check that every file below a URI is unchanged since it was signed, and that there are no other files.

    Raises:
        RefusedExport: a file differs, is missing or was added; the message names the first such file.
    """
    for name in sorted((set(sizes(place)) - {EXPORT}) ^ set(files)):
        raise RefusedExport(f"{name} {'is missing' if name in files else 'was added'}")
    for name, own in sorted(files.items()):
        found = hashlib.sha256()
        for piece in read_file(f"{place}/{name}"):
            found.update(piece)
        if found.hexdigest() != own["sha256"]:
            raise RefusedExport(f"{name} has changed")


def _signed_before(ctx: Context, to: str) -> SignedFiles:
    """Return the files at a target for which a compliance key of this workspace's root has signed an earlier export.

    Raises:
        StorageError: the target has an export of another kind.
    """
    if not is_signed(to):
        return SignedFiles()
    try:
        envelope = json.loads(_content(f"{to}/{EXPORT}"))
        stated = dsse.opened(envelope, Trust.of(ctx.workspace).authority(COMPLIANCE), EXPORT_TYPE, f"{to}/{EXPORT}")
        own = stated["predicate"]
        if own["status"] == DATA:
            return SignedFiles(names=own["exports"], files=dsse.subjects(stated), materials=own["materials"])
        found = f"status {own['status']}"
    except (ValueError, KeyError, TypeError) as error:
        found = repr(error)
    except PlinthError as error:
        found = error.what
    raise StorageError(
        f"{to} has another export",
        found=found,
        expected=f"no {EXPORT}, or an {EXPORT} of text or tokens that this root's {COMPLIANCE} signed",
        remedy="choose another folder",
    )


def _content(uri: str) -> bytes:
    pieces, length = [], 0
    for piece in read_file(uri):
        pieces.append(piece)
        if (length := length + len(piece)) > MOST_BYTES:
            raise StorageError(f"{uri} is too long to be a signed statement", expected=f"at most {MOST_BYTES:,} bytes")
    return b"".join(pieces)
