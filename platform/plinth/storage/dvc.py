"""Manifests as DVC directories: pointers for plain `dvc pull`, and restore. The only module that uses `dvc-data`.

A manifest is one DVC directory object (`….dir`). The directory has its parts and, as `manifest.json`, the manifest
itself. The object is derived from the manifest alone, so only the manifest's digest is needed to find it.
"""

from __future__ import annotations

import configparser
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml

from plinth import fingerprint
from plinth.errors import IntegrityError, StorageError
from plinth.records import Manifest
from plinth.storage.atomic import relative, write_bytes
from plinth.storage.state import State, checkout, resolve

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
