"""Manifests by digest, and for each asset the manifest that is published now.

A manifest is saved first and becomes anybody's input only when its checks have passed and its
reference has moved: what failed a blocking check stays unpublished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from plinth import fingerprint
from plinth.errors import ConflictError, IntegrityError, MissingError, SealError
from plinth.extensions import nearest
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import Folder, ObjectFacts, ObjectVersion, at_once, write_once
from plinth.storage.safe_path import relative
from plinth.storage.seal import Seal
from plinth.storage.workspace import Workspace

#: Likeness from which a published asset may be what was meant: `web/shard`, but not `code/shards` for `web/shards`.
MISTYPED = 0.85

#: Kind of fact that a reference's seal is over.
REF = "ref"


class Ref(Frozen):
    """The published state of an asset. `key` is the identity of the work that made it, `seal` that of who did it."""

    asset: str
    digest: str
    key: str
    seal: str | None = None

    def sealed_with(self, seal: Seal) -> Ref:
        """The same with its seal."""
        return self.model_copy(update={"seal": seal.of(REF, self.asset, f"{self.digest} {self.key}")})


class Refs:
    """Manifests and references of one workspace; of a shared one, `manifests` has copies of those that were read."""

    def __init__(self, workspace: Workspace, seal: Seal | None = None) -> None:
        self.manifests = workspace.manifests
        self._seal = Seal(None) if seal is None else seal
        self._saved, self._published = workspace.objects("manifests"), workspace.objects("refs")
        self._seen: dict[str, ObjectVersion | None] = {}  # references as they were read last

    def save(self, manifest: Manifest) -> str:
        """Write the manifest under its digest; nothing reads it yet. Returns the digest."""
        data = fingerprint.canonical(manifest)
        write_once(self._saved, f"{manifest.digest}.json", data, lambda _: False)  # a damaged one is replaced
        return manifest.digest

    def saved(self, prefix: str = "") -> list[Path]:
        """The files of all saved manifests whose digest begins so, by digest."""
        return list(at_once(self._saved, self._file, self._saved.names(prefix)))

    def digests(self, prefix: str = "") -> list[str]:
        """The digests of all saved manifests that begin so, sorted; reads none of them."""
        return [name.removesuffix(".json") for name in self._saved.names(prefix)]

    def facts(self) -> Iterator[ObjectFacts]:
        """Every saved manifest, by digest, in no order; none is read."""
        return (one._replace(name=one.name.removesuffix(".json")) for one in self._saved.facts())

    def remove_old(self, digest: str, before: float) -> bool:
        """Remove a manifest that was saved last before a time; False where it is younger. None is fine."""
        removed = self._saved.remove_old(f"{digest}.json", before)
        if removed and not isinstance(self._saved, Folder):
            (self.manifests / f"{digest}.json").unlink(missing_ok=True)
        return removed

    def raw(self, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Saved manifests as canonical JSON, each with its digest, verified but not parsed.

        Raises:
            MissingError, IntegrityError: absent, or its bytes are not what the digest says.
        """
        names = list(digests)
        for digest, path in zip(
            names, at_once(self._saved, self._file, [f"{one}.json" for one in names]), strict=True
        ):
            data = _read_manifest(path, digest)
            found = hashlib.sha256(data).hexdigest()
            if found != digest:
                raise _changed(path, found, digest)
            yield digest, data

    def load(self, digest: str) -> Manifest:
        """A manifest by digest, verified.

        Raises:
            MissingError, IntegrityError: absent, or its bytes are not what the digest says.
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
        """Make a manifest the current one of its asset.

        Raises:
            ConflictError: since this object read the reference, another process published something else.
        """
        self.save(manifest)
        asset, digest = manifest.asset, manifest.digest
        ref = Ref(asset=asset, digest=digest, key=key).sealed_with(self._seal)
        seen = self._seen[asset] if asset in self._seen else self._read(asset)
        if not self._published.put(_name(asset), fingerprint.canonical(ref), seen.tag if seen else None):
            now = self.seen(asset)
            raise ConflictError(
                f"another process published {asset} meanwhile",
                found=f"digest {now.digest}" if now else "no reference",
                expected=f"to publish digest {ref.digest}",
                remedy="if that was the same recipe with other sources, run the same command again",
            )
        self._read(asset)

    def ref(self, asset: str) -> Ref | None:
        """The published state of an asset, or None.

        Raises:
            IntegrityError: when the reference is not one.
            SealError: when no worker of this workspace published it.
        """
        found = self.seen(asset)
        if found is None or self.own(found):
            return found
        again = "run the same command again, which makes it anew"
        if found.seal:
            here = "a seal of somebody else" if self._seal else "a seal, and no secret on this machine to check it"
            remedy = f"where the workspace was moved or copied, bring `seal` from its trust folder; else {again}"
        else:
            here, remedy = "no seal", f"{again}; if it was published before there was a root: `plinth keys adopt`"
        raise SealError(
            f"no worker of this workspace published what {self._published.where(_name(asset))} names",
            found=here,
            expected="a seal under the secret that lies with the root of trust",
            remedy=remedy,
        )

    def own(self, found: Ref) -> bool:
        """Whether a worker that has this workspace's secret published it."""
        return found == found.sealed_with(self._seal)

    def seen(self, asset: str) -> Ref | None:
        """As `ref`, whoever published it: for lists and for what is about to be published anew."""
        found = self._read(asset)
        return self._parsed(_name(asset), found) if found else None

    def adopt(self) -> int:
        """Seal every reference that has no seal, on the word of whoever calls this. Returns how many."""
        bare = [ref for ref in self.all() if ref.seal is None]
        for ref in bare:
            self.publish(self.load(ref.digest), ref.key)
        return len(bare)

    def published(self, asset: str) -> Manifest | None:
        """The published manifest of an asset; None where it has not been made."""
        ref = self.ref(asset)
        return None if ref is None else self.load(ref.digest)

    def current(self, asset: str) -> Manifest:
        """The published manifest of an asset.

        Raises:
            MissingError: when the asset has not been made.
        """
        found = self.published(asset)
        if found is None:
            known = (name.removesuffix(".json") for name in self._published.names())
            hint, make = nearest(asset, known, cutoff=MISTYPED), f"`plinth run --select {asset}` makes it"
            raise MissingError(
                f"asset {asset} has not been made in this workspace",
                remedy=f"{hint} Else {make}, and what it needs" if hint else f"{make} and what it needs",
            )
        return found

    def all(self, bucket: str = "") -> Iterator[Ref]:
        """Every published asset, or every one of a bucket, by key."""
        names = list(self._published.names(f"{bucket}/" if bucket else ""))
        for name, found in zip(names, at_once(self._published, self._published.get, names), strict=True):
            if found:
                yield self._parsed(name, found)

    def _read(self, asset: str) -> ObjectVersion | None:
        found = self._seen[asset] = self._published.get(_name(asset))
        return found

    def _file(self, name: str) -> Path:
        """A manifest's file; of a shared workspace a copy, which is made once."""
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
                remedy="delete the file and run the same command again: finished parts are kept",
            ) from error


def _read_manifest(path: Path, digest: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"no manifest {digest}",
            remedy="restore it from a backup; or delete refs/ASSET.json of what `plinth status` calls broken, and run",
        ) from error


def _changed(path: Path, found: str, digest: str) -> IntegrityError:
    return IntegrityError(
        f"{path} has changed",
        found=f"digest {found}",
        expected=f"digest {digest}",
        remedy="delete the file and run the same command again",
    )


def _name(asset: str) -> str:
    return f"{asset}.json"
