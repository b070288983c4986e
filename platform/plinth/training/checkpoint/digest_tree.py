"""Digest tree of a checkpoint: a signed root over one manifest per rank.

    step-00000100.json                    commit record, signed: SHA-256 of the root
    step-00000100/manifest.json           the root: files of the run, SHA-256 of each rank's manifest, and each
                                          rank's model files, which can be released
    step-00000100/ranks/rank-00000.json   the files of a rank, their digests, and the ranges of the state in them
    step-00000100/…                       the files

Each rank hashes its own files and writes its own manifest; the commit adds a digest per rank and reads no file. A
rank that restores reads the root and the manifests of the files that it needs. The bytes that a rank reads therefore
do not grow with the number of ranks, except for the root, which has one line per rank.

Does not belong here: the commit record (commit_record), the bytes of a file (file_digests).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3
from pydantic import Field, model_validator

from plinth import fingerprint
from plinth.errors import CheckpointError
from plinth.records import Frozen
from plinth.storage.atomic import join, relative
from plinth.training.parameters import trainer

# The files of a directory by path, size and digest.
#
#     engine/, rng/, trainer/   BLAKE3: 7/8 of the bytes, read by ranks only
#     all others                SHA-256: files that leave the run, for the content store, model signing and consumers

#: The file that lists the others.
MANIFEST = "manifest.json"

#: Bytes read and hashed at a time: small enough for the CPU cache; each chunk counts as progress of a long phase.
CHUNK_BYTES = 1 << 19

#: Folders read by ranks only.
_OF_RANKS = ("engine/", "rng/", f"{trainer.FOLDER}/")

#: Callback that reports progress of a long phase, after each piece.
Beat = Callable[[], object]


def silent() -> None:
    """Do nothing. Use this callback in phases without a watchdog."""


class File(Frozen):
    """One file of a checkpoint: its path in the directory, its size, and either its SHA-256 or its BLAKE3 digest."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    blake3: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _has_one(self) -> File:
        if (self.sha256 is None) == (self.blake3 is None):
            raise ValueError(f"{self.path} has {'no digest' if self.sha256 is None else 'two digests'}, expected one")
        return self

    @property
    def digest(self) -> str:
        """Digest of the file, in hexadecimal."""
        return self.sha256 or self.blake3 or ""

    def hasher(self) -> Any:
        """Return a new hash object of the file's digest algorithm."""
        return hashlib.sha256() if self.sha256 is not None else blake3()

    def entry(self) -> dict[str, Any]:
        """Return the JSON entry of this file in a list of files."""
        return self.model_dump(mode="json", exclude_none=True)


def hasher_of(path: str) -> Any:
    """Return a new hash object for a checkpoint file at this path: BLAKE3 for files of ranks, otherwise SHA-256."""
    return blake3() if path.startswith(_OF_RANKS) else hashlib.sha256()


def made(path: str, size: int, digest: str) -> File:
    """Return the `File` entry for a path, a size and a digest that was computed with `hasher_of`."""
    return File(path=path, bytes=size, **{"blake3" if path.startswith(_OF_RANKS) else "sha256": digest})


def files_of(entries: Sequence[Any], where: str, reserved: Iterable[str] = (MANIFEST,)) -> list[File]:
    """Parse the file list of a manifest, and check that every path is inside the manifest's directory.

    Raises:
        CheckpointError: an entry is not a file, or a name is unsafe or occurs twice.
    """
    try:
        files = [File.model_validate(entry) for entry in entries]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{where} is not a list of files", found=error) from error
    for file in files:
        relative(file.path, where, reserved=set(reserved), error=CheckpointError)
    if len({file.path for file in files}) < len(files):
        raise CheckpointError(f"{where} has a duplicate file")
    return files


def path_in(folder: Path, item: str) -> Path:
    """Return the path of a listed file inside a folder.

    Raises:
        CheckpointError: the path leaves the folder, by its name or through a link.
    """
    return join(folder, item, f"{folder.name}/{MANIFEST}", error=CheckpointError)


def listed(folder: Path) -> list[str]:
    """Return the paths of all files below a directory, sorted."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def hash_files(folder: Path, names: Sequence[str], *, flush: bool, beat: Beat = silent) -> list[File]:
    """Hash the named files in parallel, each with the algorithm of `hasher_of`. If `flush` is set, wait until their
    bytes are on disk."""

    def one(item: str) -> File:
        size, digest = _hash(path_in(folder, item), hasher_of(item), flush, beat)
        return made(item, size, digest)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, names))


def differing(folder: Path, files: Sequence[File], beat: Beat = silent, threads: int = 1) -> tuple[File, str] | None:
    """Return the first listed file whose bytes differ, with its actual digest and size, or None if all files match.

    Raises:
        CheckpointError: a name leaves the folder through a link.
        FileNotFoundError: a file is missing.
    """

    def found(file: File) -> str:
        path = path_in(folder, file.path)
        size, digest = _hash(path, file.hasher(), False, beat)
        return "" if (size, digest) == (file.bytes, file.digest) else f"{size} bytes, {digest}"

    if threads == 1:
        return next(((file, what) for file in files if (what := found(file))), None)
    with ThreadPoolExecutor(threads) as pool:
        return next(((file, what) for file, what in zip(files, pool.map(found, files), strict=True) if what), None)


def require_total(folder: Path, files: Mapping[str, int], count: int, size: int) -> None:
    """Check that the number of files and bytes in a folder, and the size of each file in `files`, are as reported.

    Raises:
        CheckpointError: the numbers or sizes differ.
    """
    found = {item: (folder / item).stat().st_size for item in listed(folder)}
    wrong = sorted(item for item, expected in files.items() if found.get(item) != expected)
    if wrong or (len(found), sum(found.values())) != (count, size):
        raise CheckpointError(
            f"{folder} lacks files that its writers have written",
            found={"files": len(found), "bytes": sum(found.values()), **{item: found.get(item) for item in wrong}},
            expected={"files": count, "bytes": size, **{item: files[item] for item in wrong}},
        )


def _hash(path: Path, digest: Any, flush: bool, beat: Beat) -> tuple[int, str]:
    size, buffer = 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while read := stream.readinto(view):
            digest.update(view[:read])
            size += read
            beat()
        if flush:
            os.fsync(stream.fileno())
    return size, digest.hexdigest()


#: Format version of roots and manifests; earlier versions had one manifest of all files and no format version.
FORM = 2

#: Folder of the files that leave the run.
MODEL = "model/"

#: Folder of the ranks' manifests.
RANKS = "ranks"


class RankFiles(Frozen):
    """Entry of one rank in the root: its manifest, the number and total size of its files, and its model files.

    The root lists the model files, so that it alone proves to the registry that they were committed.
    """

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
    """Root of a checkpoint's digest tree: the content of `manifest.json`."""

    step: int = Field(ge=0)
    files: tuple[File, ...]  # of the run
    ranks: tuple[RankFiles, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Total size in bytes of all checkpoint files except the root."""
        return sum(file.bytes for file in self.files) + sum(one.bytes + one.file_bytes for one in self.ranks)

    @property
    def total_files(self) -> int:
        """Number of checkpoint files except the root."""
        return len(self.files) + sum(1 + one.files for one in self.ranks)

    def on_machine(self, folder: Path) -> CheckpointRoot:
        """Return the root without the ranks that have written their files on another machine."""
        return self.model_copy(update={"ranks": tuple(one for one in self.ranks if (folder / one.path).exists())})


class RankManifest(Frozen):
    """Content of a rank's manifest: its files, their digests, and the pieces of the state in them."""

    rank: int
    files: tuple[File, ...]
    pieces: Mapping[str, tuple[int, int, int, int, int]] = {}  # in its engine file, by parameter (sharded_state.Piece)


def of_model(files: Sequence[File]) -> tuple[File, ...]:
    """Return the model files among a rank's files. Other files are never released."""
    return tuple(file for file in files if file.path.startswith(MODEL))


def manifest_path(rank: int) -> str:
    """Return the path of a rank's manifest in its checkpoint."""
    return f"{RANKS}/rank-{rank:05d}.json"


def root_bytes(root: CheckpointRoot) -> bytes:
    """Return the content of `manifest.json`."""
    content: dict[str, Any] = {"form": FORM, "step": root.step, "files": [file.entry() for file in root.files]}
    if root.ranks:
        content["ranks"] = [one.model_dump(mode="json", exclude_none=True) for one in root.ranks]
    return fingerprint.canonical(content)


def manifest_bytes(manifest: RankManifest) -> bytes:
    """Return the content of a rank's manifest."""
    pieces = {name: list(piece) for name, piece in manifest.pieces.items()}
    files = [file.entry() for file in manifest.files]
    return fingerprint.canonical({"form": FORM, "rank": manifest.rank, "files": files, "pieces": pieces})


def read_root(data: bytes, checkpoint: str) -> CheckpointRoot:
    """Return the root in the bytes of `manifest.json`. The caller must have compared the digest of the bytes.

    Raises:
        CheckpointError: the bytes are not a root, have an earlier format, or name files outside the directory.
    """
    where = f"{checkpoint}: {MANIFEST}"
    content = _content(data, where)
    try:
        files, ranks = content["files"], [RankFiles.model_validate(entry) for entry in content.get("ranks", [])]
        if [one.rank for one in ranks] != list(range(len(ranks))):
            raise ValueError(f"ranks {[one.rank for one in ranks][:9]}, expected 0 to {len(ranks) - 1}")
        return CheckpointRoot(step=content["step"], files=tuple(_named(files, where)), ranks=tuple(ranks))
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} is not a valid root manifest of a checkpoint", found=error) from error


def read_manifest(data: bytes, expected: RankFiles, checkpoint: str) -> RankManifest:
    """Compare a rank's manifest with its entry in the root and return it.

    Raises:
        CheckpointError: the manifest has changed, belongs to another rank, or names files outside the directory.
    """
    where, found = f"{checkpoint}: {expected.path}", hashlib.sha256(data).hexdigest()
    if found != expected.sha256:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {expected.path} has changed since it was committed",
            found=f"{len(data)} bytes, {found}",
            expected=f"{expected.bytes} bytes, {expected.sha256}",
            remedy="the previous committed checkpoint is used; check the storage for faults",
        )
    content = _content(data, where)
    try:
        files = tuple(_named(content["files"], where))
        made = RankManifest(rank=content["rank"], files=files, pieces=content["pieces"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} is not a valid manifest of one rank's files", found=error) from error
    counted = (made.rank, len(made.files), sum(file.bytes for file in made.files))
    if counted != (expected.rank, expected.files, expected.file_bytes) or of_model(made.files) != expected.model:
        raise CheckpointError(
            f"{where} differs from the rank's entry in the checkpoint's root manifest",
            found="rank {}, {} files of {} bytes".format(*counted),
            expected=f"rank {expected.rank}, {expected.files} files of {expected.file_bytes} bytes",
        )
    return made


def manifest_in(folder: Path, expected: RankFiles, checkpoint: str) -> RankManifest:
    """Read a rank's manifest from a checkpoint's directory, compare it with its entry in the root, and return it.

    Raises:
        CheckpointError: the manifest is missing, has changed, belongs to another rank, or names files outside the
            directory.
    """
    try:
        data = (folder / expected.path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {expected.path} is missing",
            found=error,
            expected="the manifest of every rank",
            remedy="the previous committed checkpoint is used; check the storage for faults",
        ) from error
    return read_manifest(data, expected, checkpoint)


def every_file(root: CheckpointRoot, manifests: Sequence[RankManifest], checkpoint: str) -> list[File]:
    """Return all files of a checkpoint except the root, sorted by path.

    Raises:
        CheckpointError: two manifests list the same file.
    """
    files = [*root.files, *(one.manifest for one in root.ranks), *(file for one in manifests for file in one.files)]
    if len({file.path for file in files}) < len(files):
        raise CheckpointError(f"{checkpoint}: {MANIFEST} has a duplicate file")
    return sorted(files, key=lambda file: file.path)


def share(root: CheckpointRoot, index: int, count: int) -> tuple[RankFiles, ...]:
    """Return the ranks whose files reader `index` of `count` must check. With one reader per rank, each reader checks
    the files of its own rank."""
    return root.ranks[index::count]


def _content(data: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
        form = content.get("form", 1)
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{where} is not a list of files", found=error) from error
    if form != FORM:
        raise CheckpointError(
            f"{where} was written in the checkpoint format of another Plinth version",
            found=f"format {form}",
            expected=f"format {FORM}, a digest tree over the files of all ranks",
            remedy="resume with the version that wrote it, or start a new run",
        )
    return dict(content)


def _named(entries: Sequence[Any], where: str) -> list[File]:
    files = files_of(entries, where)
    for file in files:  # only the root lists a rank's manifest
        if file.path.startswith(f"{RANKS}/"):
            relative(file.path, where, reserved={file.path}, error=CheckpointError)
    return files
