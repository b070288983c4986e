"""State of a workspace: the step cache, manifests by digest, and the published manifest of each asset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.errors import ConflictError, IntegrityError, MissingError, SealError, StorageError
from plinth.extensions import nearest
from plinth.records import Frozen, Manifest, Part
from plinth.storage.atomic import join, relative, replacing, write_bytes
from plinth.storage.objects import Folder, ObjectFacts, Objects, ObjectVersion, at_once, is_old, write_once
from plinth.storage.seal import Seal, load
from plinth.storage.shared_store import open_store
from plinth.storage.store import Store, require_unchanged
from plinth.storage.workspace import Workspace

# The step cache: results of finished work by the key of its inputs.
#
# A record is written last, after all its blobs are in the store; a missing record means unfinished work. A record is
# ignored, and the work repeated, if it is damaged (it has its own digest), its blobs are missing, or no worker of this
# workspace sealed it. If two processes did the same work, the first record stays. Use renews a record's time, which
# retention counts as its age.

#: Kind of fact under a record's seal.
STEP = "step"


class Record(Frozen):
    """Result of finished work: parts, the digest of their list, and the seal of the worker."""

    parts: tuple[Part, ...]
    sha256: str
    seal: str | None = None


@dataclass(frozen=True)
class StepCache:
    """Records of finished work, by step key. The blobs of their parts are in `store`."""

    records: Objects
    store: Store
    seal: Seal = field(default=Seal(None), repr=False)

    def get(self, key: str) -> tuple[Part, ...] | None:
        """Return the parts recorded under a key, or None if the work is unfinished or a blob is gone."""
        found = self.records.get(_record_name(key))
        parts = self._sound(key, found.data) if found else None
        if found is None or parts is None or not is_old(found.modified):
            return parts
        with suppress(StorageError):  # ignored for read-only users
            return parts if self.records.put(_record_name(key), found.data, found.tag) else None
        return parts

    def get_many(self, keys: Sequence[str]) -> list[tuple[Part, ...] | None]:
        """Call `get` for each key, in parallel."""
        return list(at_once(self.records, self.get, keys))

    def put(self, key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Record finished work; return the recorded parts. If another process recorded the work first, its parts are
        returned."""
        digest = fingerprint.digest(list(parts))
        record = Record(parts=tuple(parts), sha256=digest, seal=self.seal.of(STEP, key, digest))
        data = fingerprint.canonical(record)
        there = write_once(self.records, _record_name(key), data, lambda found: self._sound(key, found) is not None)
        return record.parts if there == data else Record.model_validate_json(there).parts

    def adopt(self) -> int:
        """Seal every record without a seal, on the caller's authority. Return their number."""
        count = 0
        for name in list(self.records.names()):
            found = self.records.get(name)
            try:
                record = Record.model_validate_json(found.data) if found else None
            except ValueError:
                continue
            if found and record and record.seal is None:
                key = name.rpartition("/")[2].removesuffix(".json")
                sealed = record.model_copy(update={"seal": self.seal.of(STEP, key, record.sha256)})
                count += self.records.put(name, fingerprint.canonical(sealed), found.tag)
        return count

    def _sound(self, key: str, data: bytes) -> tuple[Part, ...] | None:
        try:
            record = Record.model_validate_json(data)
        except ValueError:
            return None
        if record.sha256 != fingerprint.digest(record.parts):
            return None
        if not self.seal.holds(record.seal, STEP, key, record.sha256):
            return None
        return record.parts if self.store.has_all(part.blob for part in record.parts) else None


def _record_name(key: str) -> str:
    return f"{key[:2]}/{key}.json"


# Manifests by digest, and the published manifest of each asset.
#
# A manifest is saved first; it is consumed downstream only after its checks have passed and its
# reference has moved: an asset that failed a blocking check stays unpublished.

#: Similarity from which a published asset is suggested: `web/shard`, but not `code/shards` for `web/shards`.
MISTYPED = 0.85

#: Kind of fact under a reference's seal.
REF = "ref"


class Ref(Frozen):
    """Published state of an asset. `key` identifies the work that produced it; `seal` identifies the worker."""

    asset: str
    digest: str
    key: str
    seal: str | None = None

    def sealed_with(self, seal: Seal) -> Ref:
        """Return the reference with its seal."""
        return self.model_copy(update={"seal": seal.of(REF, self.asset, f"{self.digest} {self.key}")})


class Refs:
    """Manifests and references of a workspace. For a shared workspace, `manifests` has local copies of the manifests
    that were read."""

    def __init__(self, workspace: Workspace, seal: Seal | None = None) -> None:
        self.manifests = workspace.manifests
        self._seal = Seal(None) if seal is None else seal
        self._saved, self._published = workspace.objects("manifests"), workspace.objects("refs")
        self._seen: dict[str, ObjectVersion | None] = {}  # references as last read

    def save(self, manifest: Manifest) -> str:
        """Write the manifest under its digest; nothing reads it yet. Return the digest."""
        data = fingerprint.canonical(manifest)
        write_once(self._saved, f"{manifest.digest}.json", data, lambda _: False)  # a damaged one is replaced
        return manifest.digest

    def saved(self, prefix: str = "") -> list[Path]:
        """Return the files of all saved manifests whose digest begins with `prefix`, by digest."""
        return list(at_once(self._saved, self._file, self._saved.names(prefix)))

    def digests(self, prefix: str = "") -> list[str]:
        """Return the digests of saved manifests that begin with `prefix`, sorted; no manifest is opened."""
        return [name.removesuffix(".json") for name in self._saved.names(prefix)]

    def facts(self) -> Iterator[ObjectFacts]:
        """Yield every saved manifest by digest, unordered; no manifest is opened."""
        return (one._replace(name=one.name.removesuffix(".json")) for one in self._saved.facts())

    def remove_old(self, digest: str, before: float) -> bool:
        """Remove a manifest that was last saved before a time; return False if it is younger. A missing manifest is not
        an error."""
        removed = self._saved.remove_old(f"{digest}.json", before)
        if removed and not isinstance(self._saved, Folder):
            (self.manifests / f"{digest}.json").unlink(missing_ok=True)
        return removed

    def raw(self, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield saved manifests as canonical JSON, each with its digest, verified but not parsed.

        Raises:
            MissingError, IntegrityError: a manifest is absent, or its bytes do not match the digest.
        """
        names = list(digests)
        for digest, path in zip(names, at_once(self._saved, self._file, [f"{one}.json" for one in names]), strict=True):
            data = _read_manifest(path, digest)
            found = hashlib.sha256(data).hexdigest()
            if found != digest:
                raise _changed(path, found, digest)
            yield digest, data

    def load(self, digest: str) -> Manifest:
        """Return a manifest by digest, verified.

        Raises:
            MissingError, IntegrityError: the manifest is absent, or its bytes do not match the digest.
        """
        path = self._file(f"{digest}.json")
        data = _read_manifest(path, digest)
        try:
            manifest = Manifest.parse(data)  # `save` writes the canonical form
        except ValueError as error:
            raise IntegrityError(
                f"{path} is not a manifest",
                found=error,
                expected=f"digest {digest}",
                remedy="delete the file and run the same command again",
            ) from error
        if manifest.digest != digest:
            raise _changed(path, manifest.digest, digest)
        return manifest

    def publish(self, manifest: Manifest, key: str) -> None:
        """Make a manifest the current manifest of its asset.

        Raises:
            ConflictError: another process published a different manifest since this object read the reference.
        """
        self.save(manifest)
        asset, digest = manifest.asset, manifest.digest
        ref = Ref(asset=asset, digest=digest, key=key).sealed_with(self._seal)
        seen = self._seen[asset] if asset in self._seen else self._read(asset)
        if not self._published.put(_ref_name(asset), fingerprint.canonical(ref), seen.tag if seen else None):
            now = self.seen(asset)
            raise ConflictError(
                f"another process published {asset} meanwhile",
                found=f"digest {now.digest}" if now else "no reference",
                expected=f"to publish digest {ref.digest}",
                remedy="if the other process ran the same recipe with other sources, run the same command again",
            )
        self._read(asset)

    def ref(self, asset: str) -> Ref | None:
        """Return the published state of an asset, or None.

        Raises:
            IntegrityError: the reference is damaged.
            SealError: no worker of this workspace published it.
        """
        found = self.seen(asset)
        if found is None or self.own(found):
            return found
        again = "run the same command again to recreate it"
        if found.seal:
            here = "a seal under another secret" if self._seal else "a seal, and no secret on this machine to check it"
            remedy = f"if the workspace was moved or copied, copy `seal` from its trust folder; otherwise {again}"
        else:
            here, remedy = "no seal", f"{again}; if it was published before the root was created: `plinth keys adopt`"
        raise SealError(
            f"{self._published.where(_ref_name(asset))} was not published by a worker of this workspace",
            found=here,
            expected="a seal under the secret stored with the root of trust",
            remedy=remedy,
        )

    def own(self, found: Ref) -> bool:
        """Return True if a worker that has this workspace's secret published the reference."""
        return found == found.sealed_with(self._seal)

    def seen(self, asset: str) -> Ref | None:
        """Return the reference without checking its seal: for lists, and before publishing again."""
        found = self._read(asset)
        return self._parsed(_ref_name(asset), found) if found else None

    def adopt(self) -> int:
        """Seal every reference without a seal, on the caller's authority. Return their number."""
        bare = [ref for ref in self.all() if ref.seal is None]
        for ref in bare:
            self.publish(self.load(ref.digest), ref.key)
        return len(bare)

    def published(self, asset: str) -> Manifest | None:
        """Return the published manifest of an asset; None if it was never materialized."""
        ref = self.ref(asset)
        return None if ref is None else self.load(ref.digest)

    def current(self, asset: str) -> Manifest:
        """Return the published manifest of an asset.

        Raises:
            MissingError: the asset was never materialized.
        """
        found = self.published(asset)
        if found is None:
            known = (name.removesuffix(".json") for name in self._published.names())
            hint, make = nearest(asset, known, cutoff=MISTYPED), f"`plinth run --select {asset}` materializes it"
            raise MissingError(
                f"asset {asset} was never materialized in this workspace",
                remedy=f"{hint} Otherwise {make} with its inputs" if hint else f"{make} with its inputs",
            )
        return found

    def all(self, bucket: str = "") -> Iterator[Ref]:
        """Yield every published asset, or every asset of a bucket, by key."""
        names = list(self._published.names(f"{bucket}/" if bucket else ""))
        for name, found in zip(names, at_once(self._published, self._published.get, names), strict=True):
            if found:
                yield self._parsed(name, found)

    def _read(self, asset: str) -> ObjectVersion | None:
        found = self._seen[asset] = self._published.get(_ref_name(asset))
        return found

    def _file(self, name: str) -> Path:
        """Return a manifest's file. For a shared workspace, it is a local copy that is created once."""
        path = self.manifests / relative(name, "the list of manifests")
        if not (isinstance(self._saved, Folder) or path.exists()) and (found := self._saved.get(name)):
            write_bytes(path, found.data)
        return path

    def _parsed(self, name: str, found: ObjectVersion) -> Ref:
        try:
            return Ref.model_validate_json(found.data)
        except ValueError as error:
            raise IntegrityError(
                f"{self._published.where(name)} is not a reference",
                found=error,
                expected="JSON with asset, digest and key",
                remedy="delete the file and run the same command again; finished parts are kept",
            ) from error


def _read_manifest(path: Path, digest: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"no manifest {digest}",
            remedy="restore it from a backup; or delete refs/ASSET.json of the assets that `plinth status` lists, then "
            "run `plinth run`",
        ) from error


def _changed(path: Path, found: str, digest: str) -> IntegrityError:
    return IntegrityError(
        f"{path} has changed",
        found=f"digest {found}",
        expected=f"digest {digest}",
        remedy="delete the file and run the same command again",
    )


def _ref_name(asset: str) -> str:
    return f"{asset}.json"


SHORTEST_PREFIX = 4


def checkout(store: Store, parts: Iterable[Part], directory: Path, *, mode: int | None = None) -> list[Path]:
    """Copy parts to `directory / part.name`; a file appears only after its SHA-256 has matched.

    Args:
        mode: permissions of the files; by default for the current user only.

    Raises:
        MissingError, IntegrityError: a blob is absent or has changed, or a name leaves the directory.
        DiskFullError, WorkspaceError: a file cannot be written.
    """
    return [_copy(store, part, join(directory, part.name, "the manifest"), mode) for part in parts]


def resolve(refs: Refs, digest: str) -> Manifest:
    """Return the saved manifest with this digest or an unambiguous prefix of it.

    Raises:
        MissingError: no digest matches, or several do.
        IntegrityError: its bytes have changed.
    """
    if len(digest) < SHORTEST_PREFIX or set(digest) - set("0123456789abcdef"):
        raise MissingError(
            f"{digest!r} is not a manifest digest",
            expected=f"at least {SHORTEST_PREFIX} hexadecimal digits",
            remedy="`plinth status` lists published assets with their digests",
        )
    found = [path.stem for path in refs.saved(digest)]
    if len(found) > 1:
        shown = ", ".join(each[: len(digest) + 6] for each in found[:5])
        raise MissingError(f"digest {digest} is ambiguous", found=shown, remedy="use more digits")
    return refs.load(found[0] if found else digest)


def _copy(store: Store, part: Part, target: Path, mode: int | None) -> Path:
    source = store.located(part.blob)
    with replacing(target, mode=mode) as out:
        require_unchanged(source, part.blob, out.write, part=part.name)
    return target


@dataclass
class State:
    """An open workspace."""

    workspace: Workspace

    def __post_init__(self) -> None:
        self.store = open_store(self.workspace)
        seal = load(self.workspace.trust_folder)
        self.cache = StepCache(self.workspace.objects("records"), self.store, seal)
        self.refs = Refs(self.workspace, seal)

    def store_json(self, name: str, value: Any) -> Part:
        """Store canonical JSON as a part; for small values that are not tables."""
        return Part(name=name, blob=self.store.put_bytes(fingerprint.canonical(value)))
