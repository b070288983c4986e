"""The digest tree of a checkpoint: a signed root over one manifest per rank.

    step-00000100.json                    commit record, signed: SHA-256 of the root
    step-00000100/manifest.json           the root: files of the run, SHA-256 of each rank's manifest, and the
                                          files of its part of the model, which leave the run
    step-00000100/ranks/rank-00000.json   the files of a rank, their digests, and which pieces of the state they hold
    step-00000100/…                       the files

Each rank hashes its own files and writes its own manifest; who commits adds a digest per rank and reads no file. Who
restores reads the root and the manifests of its share: bytes per rank do not grow with the number of ranks, but for the
root's line per rank.

Does not belong here: the record (commit_record), the bytes of a file (file_digests).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from plinth import fingerprint
from plinth.errors import CheckpointError
from plinth.records import Frozen
from plinth.storage.safe_path import relative
from plinth.training.checkpoint.file_digests import MANIFEST, File, files_of

#: The form of roots and manifests. Before, one manifest listed every file, and a root states no form.
FORM = 2

#: The folder of the files that leave the run.
MODEL = "model/"

#: The folder of the manifests of ranks.
RANKS = "ranks"


class RankFiles(Frozen):
    """What the root states of a rank: its manifest, the files in it by number and bytes, and those of the model, so
    that whoever registers these can show by the root alone that they were committed."""

    rank: int = Field(ge=0)
    bytes: int = Field(ge=0)  # of the manifest
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    files: int = Field(ge=0)
    file_bytes: int = Field(ge=0)
    model: tuple[File, ...] = ()

    @property
    def path(self) -> str:
        return manifest_path(self.rank)

    @property
    def manifest(self) -> File:
        """The manifest as a file of the checkpoint."""
        return File(path=self.path, bytes=self.bytes, sha256=self.sha256)


class CheckpointRoot(Frozen):
    """What `manifest.json` states."""

    step: int = Field(ge=0)
    files: tuple[File, ...]  # of the run
    ranks: tuple[RankFiles, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Of every file but the root."""
        return sum(file.bytes for file in self.files) + sum(one.bytes + one.file_bytes for one in self.ranks)

    @property
    def total_files(self) -> int:
        """How many files there are but the root."""
        return len(self.files) + sum(1 + one.files for one in self.ranks)


class RankManifest(Frozen):
    """What the manifest of a rank states."""

    rank: int
    files: tuple[File, ...]
    pieces: Mapping[str, tuple[int, int, int, int, int]] = {}  # by parameter, of its engine file (sharded_state.Piece)


def of_model(files: Sequence[File]) -> tuple[File, ...]:
    """Those of a rank's files that leave the run."""
    return tuple(file for file in files if file.path.startswith(MODEL))


def manifest_path(rank: int) -> str:
    """The path of a rank's manifest in its checkpoint."""
    return f"{RANKS}/rank-{rank:05d}.json"


def root_bytes(root: CheckpointRoot) -> bytes:
    """The content of `manifest.json`."""
    content: dict[str, Any] = {"form": FORM, "step": root.step, "files": [file.entry() for file in root.files]}
    if root.ranks:
        content["ranks"] = [one.model_dump(mode="json", exclude_none=True) for one in root.ranks]
    return fingerprint.canonical(content)


def manifest_bytes(manifest: RankManifest) -> bytes:
    """The content of a rank's manifest."""
    pieces = {name: list(piece) for name, piece in manifest.pieces.items()}
    files = [file.entry() for file in manifest.files]
    return fingerprint.canonical({"form": FORM, "rank": manifest.rank, "files": files, "pieces": pieces})


def read_root(data: bytes, checkpoint: str) -> CheckpointRoot:
    """The root in the bytes of `manifest.json`, whose digest was compared.

    Raises:
        CheckpointError: it is none, of an earlier form, or names what leaves the directory.
    """
    where = f"{checkpoint}: {MANIFEST}"
    content = _content(data, where)
    try:
        files, ranks = content["files"], [RankFiles.model_validate(entry) for entry in content.get("ranks", [])]
        if [one.rank for one in ranks] != list(range(len(ranks))):
            raise ValueError(f"ranks {[one.rank for one in ranks][:9]}, expected 0 to {len(ranks) - 1}")
        return CheckpointRoot(step=content["step"], files=tuple(_named(files, where)), ranks=tuple(ranks))
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} is no root of a checkpoint", found=error) from error


def read_manifest(data: bytes, expected: RankFiles, checkpoint: str) -> RankManifest:
    """A rank's manifest, whose bytes are compared with what the root states.

    Raises:
        CheckpointError: it has changed, is another rank's, or names what leaves the directory.
    """
    where, found = f"{checkpoint}: {expected.path}", hashlib.sha256(data).hexdigest()
    if found != expected.sha256:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {expected.path} has changed since it was committed",
            found=f"{len(data)} bytes, {found}",
            expected=f"{expected.bytes} bytes, {expected.sha256}",
            remedy="the previous committed checkpoint is used; look for failing storage",
        )
    content = _content(data, where)
    try:
        files = tuple(_named(content["files"], where))
        made = RankManifest(rank=content["rank"], files=files, pieces=content["pieces"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} is no manifest of a rank", found=error) from error
    counted = (made.rank, len(made.files), sum(file.bytes for file in made.files))
    if counted != (expected.rank, expected.files, expected.file_bytes) or of_model(made.files) != expected.model:
        raise CheckpointError(
            f"{where} is not what the root states",
            found="rank {}, {} files of {} bytes".format(*counted),
            expected=f"rank {expected.rank}, {expected.files} files of {expected.file_bytes} bytes",
        )
    return made


def manifest_in(folder: Path, expected: RankFiles, checkpoint: str) -> RankManifest:
    """A rank's manifest in the directory of a checkpoint.

    Raises:
        CheckpointError: as `read_manifest`, or it is missing.
    """
    try:
        data = (folder / expected.path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {expected.path} is missing",
            found=error,
            expected="the manifest of every rank",
            remedy="the previous committed checkpoint is used; look for failing storage",
        ) from error
    return read_manifest(data, expected, checkpoint)


def every_file(root: CheckpointRoot, manifests: Sequence[RankManifest], checkpoint: str) -> list[File]:
    """All files of a checkpoint but the root, sorted by path.

    Raises:
        CheckpointError: two manifests name the same file.
    """
    files = [*root.files, *(one.manifest for one in root.ranks), *(file for one in manifests for file in one.files)]
    if len({file.path for file in files}) < len(files):
        raise CheckpointError(f"{checkpoint}: {MANIFEST} names a file twice")
    return sorted(files, key=lambda file: file.path)


def share(root: CheckpointRoot, index: int, count: int) -> tuple[RankFiles, ...]:
    """The ranks of a checkpoint whose files reader `index` of `count` answers for: its own where counts are equal."""
    return root.ranks[index::count]


def _content(data: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
        form = content.get("form", 1)
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{where} is no list of files", found=error) from error
    if form != FORM:
        raise CheckpointError(
            f"{where} has the form of another version of Plinth",
            found=f"form {form}",
            expected=f"form {FORM}: a digest tree over ranks",
            remedy="resume it with the version that wrote it, or start the run again",
        )
    return dict(content)


def _named(entries: Sequence[Any], where: str) -> list[File]:
    files = files_of(entries, where)
    for file in files:  # a rank's manifest is stated by the root alone
        if file.path.startswith(f"{RANKS}/"):
            relative(file.path, where, reserved={file.path}, error=CheckpointError)
    return files
