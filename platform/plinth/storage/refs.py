"""Manifests by digest, and for each asset the manifest that is published now.

A manifest is saved first and becomes anybody's input only when its checks have passed and its
reference has moved: what failed a blocking check stays unpublished.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plinth import fingerprint
from plinth.errors import IntegrityError, MissingError
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace


class Ref(Frozen):
    """The published state of an asset. `key` is the identity of the work that made it."""

    asset: str
    digest: str
    key: str


class Refs:
    """Manifests and references of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.manifests, self.refs = workspace.manifests, workspace.refs

    def save(self, manifest: Manifest) -> str:
        """Write the manifest under its digest; nothing reads it yet. Returns the digest."""
        path, data = self.manifests / f"{manifest.digest}.json", fingerprint.canonical(manifest)
        if not path.exists() or path.read_bytes() != data:  # a damaged one is replaced
            write_bytes(path, data)
        return manifest.digest

    def load(self, digest: str) -> Manifest:
        """A manifest by digest, verified.

        Raises:
            MissingError, IntegrityError: absent, or its bytes are not what the digest says.
        """
        path = self.manifests / f"{digest}.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise MissingError(f"no manifest {digest}", remedy="`plinth status` lists what is published") from error
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
            raise IntegrityError(
                f"{path} has changed",
                found=f"digest {manifest.digest}",
                expected=f"digest {digest}",
                remedy="delete the file and run the same command again",
            )
        return manifest

    def publish(self, manifest: Manifest, key: str) -> None:
        """Make a manifest the current one of its asset."""
        self.save(manifest)
        ref = Ref(asset=manifest.asset, digest=manifest.digest, key=key)
        write_bytes(self._path(manifest.asset), fingerprint.canonical(ref))

    def ref(self, asset: str) -> Ref | None:
        """The published state of an asset, or None.

        Raises:
            IntegrityError: when the reference is not one.
        """
        path = self._path(asset)
        return _read(path) if path.exists() else None

    def current(self, asset: str) -> Manifest:
        """The published manifest of an asset.

        Raises:
            MissingError: when the asset has not been made.
        """
        ref = self.ref(asset)
        if ref is None:
            raise MissingError(
                f"asset {asset} has not been made in this workspace",
                remedy=f"`plinth run --select {asset}` makes it and what it needs",
            )
        return self.load(ref.digest)

    def all(self) -> Iterator[Ref]:
        """Every published asset, by key."""
        for path in sorted(self.refs.rglob("*.json")):
            yield _read(path)

    def _path(self, asset: str) -> Path:
        return self.refs / f"{asset}.json"


def _read(path: Path) -> Ref:
    try:
        return Ref.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(
            f"{path} is not a reference",
            found=error,
            expected="JSON with asset, digest and key",
            remedy="delete the file and run the same command again: finished parts are kept",
        ) from error
