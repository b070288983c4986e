"""The edges of a workspace in one file, so that a search does not read every manifest.

    impact/edges.npz    in the workspace
    a note of its SHA-256 beside the root of trust that this user has pinned, outside the workspace

A manifest's name is the digest of its content, so what was read once never changes: a search reads only manifests that
the index does not have. The index counts only when its bytes are those that this user noted: whoever can write the
workspace, but not the user's folder of trust, cannot hide a descendant in it. In every other case (no note, another
digest, damage, another format) every manifest is read again.

A manifest that was deleted after it was read stays in the index: that something was made of bad data does not end with
the deletion of the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.errors import IntegrityError, StorageError
from plinth.provenance.impact.edges import Edges, SavedLinks, decoded, encoded, grown, none
from plinth.storage.atomic import locked, write_bytes
from plinth.storage.workspace import Workspace

FILE = Path("impact") / "edges.npz"


class SavedEdges(NamedTuple):
    """The edges of a workspace, and the digests of the manifests that are there now."""

    edges: Edges
    present: frozenset[str]


def current(ctx: Context) -> SavedEdges:
    """Every saved manifest of the workspace with its links, those saved a moment ago too.

    Raises:
        IntegrityError: a saved manifest cannot be read; nothing is left out for it.
    """
    known, present = _kept(ctx.workspace), frozenset(ctx.refs.digests())
    edges = known or none()
    lacking = sorted(present - {node.decode() for node in edges.saved.tolist()})
    if lacking:
        edges = grown(edges, _read(ctx, lacking))
    if lacking or known is None:
        _keep(ctx.workspace, edges)
    return SavedEdges(edges, present)


def note_path(workspace: Workspace) -> Path:
    """The file of this user, outside the workspace, that has the digest of the workspace's index."""
    place = hashlib.sha256(workspace.places[0].encode()).hexdigest()[:16]
    return workspace.trust_folder / "impact" / f"{place}.sha256"


def _kept(workspace: Workspace) -> Edges | None:
    """The index, when it is the one that was noted."""
    try:
        data = (workspace.root / FILE).read_bytes()
        if hashlib.sha256(data).hexdigest() != note_path(workspace).read_text().strip():
            return None
        return decoded(data)
    except (OSError, ValueError, KeyError):
        return None


def _keep(workspace: Workspace, edges: Edges) -> None:
    data, note = encoded(edges), note_path(workspace)
    # Where nothing can be written, the next search reads the manifests again.
    with suppress(StorageError, OSError):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(note.with_suffix(".lock")):
            write_bytes(workspace.root / FILE, data)
            write_bytes(note, hashlib.sha256(data).hexdigest().encode(), mode=0o600)


def _read(ctx: Context, digests: Sequence[str]) -> Iterator[SavedLinks]:
    for digest, data in metered(ctx.progress, "reading manifests", ctx.refs.raw(digests), len(digests)):
        try:
            content = json.loads(data)
            yield SavedLinks(digest, str(content["asset"]), tuple(map(str, content["inputs"].values())))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(
                f"{digest}.json is not a manifest",
                found=error,
                expected="an asset and its inputs",
                remedy="delete the file and run the same command again",
            ) from error
