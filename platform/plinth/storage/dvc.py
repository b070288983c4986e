"""Manifests as DVC directories: pointers for plain `dvc pull`, restore, push and pull. The only module that uses
`dvc-data`.

A manifest is one DVC directory object (`….dir`). The directory has its parts and, as `manifest.json`, the manifest
itself. The object is derived from the manifest alone, so only the manifest's digest is needed to find it. A remote has
`files/md5/…` for DVC and `manifests/<digest>.json` for Plinth.
"""

from __future__ import annotations

import configparser
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from plinth import fingerprint
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Manifest, Part
from plinth.storage.atomic import relative, write_bytes
from plinth.storage.state import State, checkout, resolve

if TYPE_CHECKING:
    from dvc_data.hashfile.db import HashFileDB
    from dvc_data.hashfile.hash_info import HashInfo

MANIFEST_NAME = "manifest.json"
REMOTE_NAME = "plinth"


def directory_object(state: State, manifest: Manifest) -> str:
    """Store the manifest's DVC directory object; return its name (`<md5>.dir`).

    Raises:
        IntegrityError: two parts share a name, or a name leaves the directory.
    """
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree

    tree: Any = cast(Any, Tree)()
    own = state.store.put_bytes(fingerprint.canonical(manifest))
    entries = {relative(part.name, f"manifest {manifest.digest}").parts: part.blob for part in manifest.parts}
    if len(entries) != len(manifest.parts) or (MANIFEST_NAME,) in entries:
        raise IntegrityError(f"manifest {manifest.digest} of {manifest.asset} has parts with duplicate names")
    entries[(MANIFEST_NAME,)] = own
    for key, blob in sorted(entries.items()):
        tree.add(key, None, HashInfo("md5", blob.md5))
    tree.digest()
    write_bytes(state.store.path(tree.oid), tree.as_bytes(), mode=0o444)
    return str(tree.oid)


def export(state: State, manifests: Iterable[Manifest], directory: Path) -> list[Path]:
    """Make `directory` a DVC project without git, with the store as its remote and one pointer per manifest.

    Afterward `cd DIR && dvc pull` fetches every part with plain DVC. Returns the pointer files.

    Raises:
        StorageError: two assets would get the same pointer.
    """
    state.store.require_folder("the DVC project of a store")
    manifests = list(manifests)
    names = {manifest.asset.replace("/", "-"): manifest for manifest in manifests}
    if len(names) != len(manifests):
        raise StorageError("two assets have the same pointer file", found=[each.asset for each in manifests])
    write_bytes(directory / ".dvc" / "config", _config(state.workspace.store))
    pointers = []
    for name, manifest in names.items():
        pointer = directory / f"{name}.dvc"
        write_bytes(pointer, _pointer(name, directory_object(state, manifest), manifest))
        pointers.append(pointer)
    return pointers


def restore(state: State, digest: str, directory: Path) -> Manifest:
    """Write the files of a manifest, given by its digest or unambiguous prefix, below `directory`.

    Raises:
        MissingError, IntegrityError: there is no such manifest, or a blob is absent or has changed.
    """
    manifest = resolve(state.refs, digest)
    checkout(state.store, manifest.parts, directory)
    return manifest


def push(state: State, manifests: Sequence[Manifest], url: str, options: Mapping[str, Any] | None = None) -> int:
    """Copy manifests and their blobs to a remote store; return the number of new objects there.

    Args:
        url: a local path or `s3://bucket/prefix`.
        options: DVC remote settings, such as `endpointurl`.

    Raises:
        StorageError: an object was not transferred. MissingError: a blob is not in the store.
    """
    for manifest in manifests:
        for part in manifest.parts:
            state.store.open_path(part.blob)
    fs, root = _filesystem(url, options)
    wanted = {_hash_info(directory_object(state, manifest)) for manifest in manifests}
    moved = _transfer(_local(state), _database(fs, root), wanted, url)
    for manifest in manifests:  # last: a manifest on the remote implies that its blobs exist
        path = fs.join(root, "manifests", f"{manifest.digest}.json")
        fs.makedirs(fs.parent(path), exist_ok=True)
        fs.pipe_file(path, fingerprint.canonical(manifest))
    return moved


def pull(state: State, digest: str, url: str, options: Mapping[str, Any] | None = None) -> Manifest:
    """Fetch the manifest with this full digest and its blobs from a remote; every blob is verified.

    Raises:
        MissingError: the remote has no such manifest. StorageError, IntegrityError: an object did not
            arrive, or differs from the manifest.
    """
    state.store.require_folder("pulling")
    fs, root = _filesystem(url, options)
    manifest = _remote_manifest(fs, root, digest, url)
    for part in manifest.parts:
        try:
            state.store.verify(part.blob)
        except (MissingError, StorageError):  # a damaged blob must not count as present
            state.store.path(part.blob).unlink(missing_ok=True)
    _transfer(_database(fs, root), _local(state), {_hash_info(part.blob.md5) for part in manifest.parts}, url)
    for part in manifest.parts:
        _accept(state, part, url)
    state.refs.save(manifest)
    return manifest


def _config(store: Path) -> bytes:
    config = configparser.ConfigParser()
    config["core"] = {"no_scm": "True", "analytics": "false", "remote": REMOTE_NAME}
    config[f"'remote \"{REMOTE_NAME}\"'"] = {"url": str(store)}
    text = io.StringIO()
    config.write(text)
    return text.getvalue().encode()


def _pointer(name: str, oid: str, manifest: Manifest) -> bytes:
    record = {
        "desc": f"{manifest.asset} {manifest.digest}",
        "outs": [{"md5": oid, "hash": "md5", "nfiles": len(manifest.parts) + 1, "path": name}],
    }
    return str(yaml.safe_dump(record, sort_keys=False)).encode()


def _filesystem(url: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Return a DVC file system, and the path of the remote within it."""
    from dvc_objects.fs.local import LocalFileSystem

    if url.startswith("s3://"):
        try:
            from dvc_s3 import S3FileSystem
        except ImportError as error:
            raise StorageError(f"cannot open {url}", found=error, remedy="install the extra `plinth[s3]`") from error
        return S3FileSystem(**dict(options or {})), url.removeprefix("s3://").rstrip("/")
    if "://" in url:
        raise StorageError(f"cannot open {url}", found="an unknown scheme", expected="a local path or s3://…")
    return cast(Any, LocalFileSystem)(), str(Path(url).absolute())


def _database(fs: Any, root: str) -> HashFileDB:
    from dvc_data.hashfile.db import get_odb

    database: HashFileDB = cast(Any, get_odb)(fs, fs.join(root, "files", "md5"), hash_name="md5")
    return database


def _local(state: State) -> HashFileDB:
    return _database(*_filesystem(str(state.workspace.store), None))


def _hash_info(oid: str) -> HashInfo:
    from dvc_data.hashfile.hash_info import HashInfo

    return HashInfo("md5", oid)


def _transfer(source: HashFileDB, target: HashFileDB, wanted: set[HashInfo], url: str) -> int:
    """Copy objects and everything they contain; return the number of new objects."""
    from dvc_data.hashfile.transfer import transfer

    try:
        result = transfer(source, target, wanted, shallow=False)
    except Exception as error:  # file systems and their clients raise any type
        raise StorageError(f"cannot transfer to or from {url}", found=f"{type(error).__name__}: {error}") from error
    if result.failed:
        shown = sorted(str(each.value) for each in result.failed)
        raise StorageError(
            f"{len(shown)} objects were not transferred to or from {url}",
            found=", ".join(shown[:5]),
            remedy="see the log above for the cause, then run the same command again; transferred objects are kept",
        )
    return len(result.transferred)


def _accept(state: State, part: Part, url: str) -> None:
    """Keep a blob from a remote only if it matches the manifest."""
    try:
        state.store.verify(part.blob)
    except MissingError as error:
        raise MissingError(f"{url} has no blob {part.blob.md5} ({part.name})", remedy="push it again") from error
    except IntegrityError as error:
        state.store.path(part.blob).unlink(missing_ok=True)
        raise IntegrityError(
            f"{url} returned wrong bytes for {part.name}",
            found=error.found,
            expected=error.expected,
            remedy=f"delete {part.blob.md5} on the remote and push it again; the wrong bytes were not kept",
        ) from error


def _remote_manifest(fs: Any, root: str, digest: str, url: str) -> Manifest:
    path = fs.join(root, "manifests", f"{digest}.json")
    try:
        data = fs.cat_file(path)
    except FileNotFoundError as error:
        raise MissingError(
            f"{url} has no manifest {digest}", remedy="push it from the workspace that has it"
        ) from error
    except Exception as error:
        raise StorageError(f"cannot read {path} at {url}", found=f"{type(error).__name__}: {error}") from error
    try:
        manifest = Manifest.model_validate_json(data)
    except ValueError as error:
        raise IntegrityError(f"{path} at {url} is not a manifest", found=error) from error
    if manifest.digest != digest:
        raise IntegrityError(f"{path} at {url} has changed", found=manifest.digest, expected=digest)
    return manifest
