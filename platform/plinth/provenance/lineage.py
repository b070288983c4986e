"""Links between manifests, in both directions.

The forward links are arrays, cached in one file per workspace, so that a search over 10⁵ manifests takes milliseconds.
The backward walk goes from a manifest to its raw sources and verifies every link.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.errors import IntegrityError, LineageError, PlinthError, StorageError
from plinth.provenance.statements import PROVENANCE_SCHEMA, Chain, Link, chain
from plinth.records import Frozen, Manifest, Part
from plinth.storage.atomic import join, locked, write_bytes
from plinth.storage.state import resolve
from plinth.storage.workspace import Workspace

# Manifests and their links as arrays, for searches over 10⁵ manifests in milliseconds.
#
# A node is a digest: of a manifest, or of an inventory that is an input of a manifest. Nodes keep their number when
# others are added. Edges lead from an input to its consumer and are sorted by input, so the consumers of a node are one
# slice.

#: Length of a node's name: a SHA-256 in hexadecimal. Inputs that are not digests are represented by the SHA-256 of
#: their text.
WIDTH = 64
FORMAT = 1
NOT_SAVED = -1  # asset of a node without a saved manifest

Ints = NDArray[np.int32]


class SavedLinks(NamedTuple):
    """Digest, asset and inputs of one saved manifest, from which edges are built."""

    digest: str
    asset: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Edges:
    """Links between manifests as arrays: n nodes, m edges.

    Args:
        nodes: digests of the nodes, [n].
        asset: index into `assets` of each node, [n], or `NOT_SAVED`.
        assets: asset names.
        inputs, consumers: nodes at the two ends of each edge, [m], sorted by input.
    """

    nodes: NDArray[np.bytes_]
    asset: Ints
    assets: tuple[str, ...]
    inputs: Ints
    consumers: Ints

    @property
    def saved(self) -> NDArray[np.bytes_]:
        """Digests of the nodes that are saved manifests."""
        found: NDArray[np.bytes_] = self.nodes[self.asset != NOT_SAVED]
        return found

    def digest(self, node: int) -> str:
        return bytes(self.nodes[node]).decode()

    def name(self, node: int) -> str:
        """Return the asset name of a node, or an empty string if the node is not a saved manifest."""
        number = int(self.asset[node])
        return "" if number == NOT_SAVED else self.assets[number]


def none() -> Edges:
    """Return the edges of an empty workspace."""
    no = np.empty(0, np.int32)
    return Edges(np.empty(0, f"S{WIDTH}"), no, (), no, no)


def key(digest: str) -> bytes:
    """Convert a digest to the binary form in which nodes are stored."""
    if len(digest) <= WIDTH and digest.isascii() and "\0" not in digest:
        return digest.encode()
    return hashlib.sha256(digest.encode(errors="surrogatepass")).hexdigest().encode()


def grown(edges: Edges, found: Iterable[SavedLinks]) -> Edges:
    """Return new edges: the links in `edges` and the links of the manifests in `found`."""
    number = {node: at for at, node in enumerate(edges.nodes.tolist())}
    names = {name: at for at, name in enumerate(edges.assets)}
    asset: dict[int, int] = {}
    inputs: list[int] = []
    consumers: list[int] = []
    for manifest in found:
        own = number.setdefault(key(manifest.digest), len(number))
        asset[own] = names.setdefault(manifest.asset, len(names))
        for digest in dict.fromkeys(manifest.inputs):
            inputs.append(number.setdefault(key(digest), len(number)))
            consumers.append(own)
    kinds = np.full(len(number), NOT_SAVED, np.int32)
    kinds[: len(edges.asset)] = edges.asset
    kinds[list(asset.keys())] = list(asset.values())
    return _sorted(
        np.array(list(number), f"S{WIDTH}"),
        kinds,
        tuple(names),
        np.concatenate([edges.inputs, np.array(inputs, np.int32)]),
        np.concatenate([edges.consumers, np.array(consumers, np.int32)]),
    )


def search(edges: Edges, starts: Sequence[int]) -> Ints:
    """Return the distance of each node from the nearest start [n], by breadth-first search; -1 if a node is
    unreachable."""
    distance = np.full(len(edges.nodes), -1, np.int32)
    bounds = np.searchsorted(edges.inputs, np.arange(len(edges.nodes) + 1, dtype=np.int32))
    layer, steps = np.unique(np.asarray(starts, np.int64)), 0
    while len(layer):
        distance[layer] = steps
        reached = edges.consumers[_within(bounds[layer], bounds[layer + 1])]
        layer = np.unique(reached[distance[reached] < 0])
        steps += 1
    return distance


def encoded(edges: Edges) -> bytes:
    """Serialize the edges as an uncompressed `.npz` file without pickles."""
    out = io.BytesIO()
    names = np.frombuffer(json.dumps([FORMAT, *edges.assets]).encode(), np.uint8)
    np.savez(
        out,
        nodes=edges.nodes,
        asset=edges.asset,
        names=names,
        inputs=edges.inputs,
        consumers=edges.consumers,
        allow_pickle=False,
    )
    return out.getvalue()


def decoded(data: bytes) -> Edges:
    """Parse edges serialized by `encoded`.

    Raises:
        ValueError: the data is not in the format of `encoded`.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        form, *names = json.loads(arrays["names"].tobytes())
        if form != FORMAT:
            raise ValueError(f"format {form}")
        return Edges(arrays["nodes"], arrays["asset"], tuple(names), arrays["inputs"], arrays["consumers"])


def _sorted(nodes: NDArray[np.bytes_], asset: Ints, assets: tuple[str, ...], inputs: Ints, consumers: Ints) -> Edges:
    order = np.argsort(inputs, kind="stable")
    return Edges(nodes, asset, assets, inputs[order], consumers[order])


def _within(begins: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Return all integers in the half-open ranges `begins` to `ends`, one range after the other."""
    sizes = ends - begins
    offsets = np.repeat(begins - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    found: NDArray[Any] = np.arange(int(sizes.sum())) + offsets
    return found


# The edges of a workspace in one file, so that a search need not read every manifest.
#
#     impact/edges.npz    in the workspace
#     its SHA-256, in the user's folder of trust outside the workspace
#
# A manifest's name is the digest of its content, so a manifest that was read never changes: a search reads only
# manifests missing from the index. The index is valid only if its digest matches the one in the user's trust folder,
# so that a writer of the workspace without access to that folder cannot hide a descendant. In all other cases (no
# stored digest, another digest, damage, another format) every manifest is read again.
#
# A manifest that was deleted after it was read stays in the index: deletion of a record does not undo the derivation
# from bad data.

FILE = Path("impact") / "edges.npz"


class SavedEdges(NamedTuple):
    """Edges of a workspace, and the digests of the manifests that the workspace contains now."""

    edges: Edges
    present: frozenset[str]


def current(ctx: Context) -> SavedEdges:
    """Return the links of every saved manifest in the workspace, including manifests saved since the last search.

    Raises:
        IntegrityError: a saved manifest cannot be read. Unreadable manifests are not skipped.
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
    """Return the path of the file, outside the workspace, that stores the digest of the workspace's link index."""
    place = hashlib.sha256(workspace.places[0].encode()).hexdigest()[:16]
    return workspace.trust_folder / "impact" / f"{place}.sha256"


def _kept(workspace: Workspace) -> Edges | None:
    """Return the cached link index if its digest matches the stored digest, else None."""
    try:
        data = (workspace.root / FILE).read_bytes()
        if hashlib.sha256(data).hexdigest() != note_path(workspace).read_text().strip():
            return None
        return decoded(data)
    except (OSError, ValueError, KeyError):
        return None


def _keep(workspace: Workspace, edges: Edges) -> None:
    data, note = encoded(edges), note_path(workspace)
    # Without write access the next search reads the manifests again.
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


# Walk from a manifest to the raw sources that verifies every link.
#
# A link is valid if the manifest's bytes match its digest and every blob matches its SHA-256. The walk starts at the
# target and goes toward the sources, so the first broken link is the nearest.

PROVENANCE_NAME = "provenance.json"
HASHING_THREADS = 4  # hashing releases the interpreter lock, reading waits for the disk


class Verified(Frozen):
    """Result of a lineage verification. `complete` is False if blobs were checked only for existence and length."""

    asset: str
    digest: str
    manifests: int
    blobs: int
    bytes: int
    sources: dict[str, str]
    complete: bool


def walk(ctx: Context, digest: str) -> Chain:
    """Return the ancestry of the manifest with this digest (or unambiguous prefix), inputs before their consumers.

    Raises:
        MissingError: there is no such manifest.
        LineageError: a manifest in the ancestry is missing or changed, or there is no raw source.
    """
    return chain(ctx.refs, resolve(ctx.refs, digest))


def verify(ctx: Context, target: Manifest | Path | str, *, fast: bool = False) -> Verified:
    """Verify a manifest, or a checkpoint directory with `provenance.json`, down to its raw sources.

    Args:
        target: a manifest, its digest (or prefix), or the directory.
        fast: True checks only existence and length of every blob.

    Raises:
        LineageError: a link is broken. The error names the first broken link on the way from the target to the sources.
    """
    if isinstance(target, Path):
        return _verify_directory(ctx, target, fast)
    manifest = resolve(ctx.refs, target) if isinstance(target, str) else target
    ancestry = chain(ctx.refs, manifest)
    blobs = list(_blobs(ctx, ancestry, manifest))
    check = _present if fast else _unchanged
    with ctx.progress.meter("verifying blobs", len(blobs)) as meter, ThreadPoolExecutor(HASHING_THREADS) as threads:
        try:
            for _ in threads.map(lambda found: check(ctx, *found), blobs):
                meter.advance()
        finally:
            threads.shutdown(cancel_futures=True)
    return Verified(
        asset=manifest.asset,
        digest=manifest.digest,
        manifests=len(ancestry.links),
        blobs=len(blobs),
        bytes=sum(part.blob.bytes for _, part in blobs),
        sources=ancestry.sources,
        complete=not fast,
    )


def _blobs(ctx: Context, ancestry: Chain, manifest: Manifest) -> Iterator[tuple[Link, Part]]:
    """Yield every part in the ancestry once, with the link that it belongs to. The target's parts come first."""
    seen: set[str] = set()
    for link in reversed(ancestry.links):
        parts = manifest.parts if link.digest == manifest.digest else ctx.refs.load(link.digest).parts
        for part in parts:
            if part.blob.sha256 not in seen:
                seen.add(part.blob.sha256)
                yield link, part


def _present(ctx: Context, link: Link, part: Part) -> None:
    try:
        ctx.store.located(part.blob)
    except PlinthError as error:
        raise _broken(link, part, error) from error


def _unchanged(ctx: Context, link: Link, part: Part) -> None:
    try:
        ctx.store.verify(part.blob)
    except PlinthError as error:
        raise _broken(link, part, error) from error


def _broken(link: Link, part: Part, error: PlinthError) -> LineageError:
    return LineageError(
        f"the lineage breaks at {link.asset} {link.digest[:12]}: {part.name} is invalid",
        found=error.found or error.what,
        expected=error.expected or f"SHA-256 {part.blob.sha256}",
        remedy="restore the blob from a remote, or delete it and run the recipe again",
    )


def _verify_directory(ctx: Context, directory: Path, fast: bool) -> Verified:
    """Verify a directory's files against its provenance, and the chain in the provenance against the workspace."""
    provenance = _provenance(directory)
    for name, expected in sorted(provenance["files"].items()):
        _same_file(directory, name, expected)
    digest = provenance["checkpoint"]["digest"]
    try:
        manifest = ctx.refs.load(digest)
    except PlinthError as error:
        raise LineageError(
            f"the lineage of {directory} breaks at its first link: checkpoint manifest {digest}",
            found=error.found or error.what,
            expected="the manifest in this workspace",
            remedy="verify in the workspace that created it, or pull the manifest from a remote",
        ) from error
    claimed = {(link["asset"], link["digest"]) for link in provenance["chain"]}
    proved = {(link.asset, link.digest) for link in chain(ctx.refs, manifest).links}
    if claimed != proved:
        raise LineageError(
            f"{directory / PROVENANCE_NAME} has a different ancestry than its checkpoint",
            found=f"claimed only: {sorted(claimed - proved)[:3]}",
            expected=f"also: {sorted(proved - claimed)[:3]}",
            remedy="do not use this directory; register the checkpoint again",
        )
    return verify(ctx, manifest, fast=fast)


def _provenance(directory: Path) -> dict[str, Any]:
    path = directory / PROVENANCE_NAME
    try:
        content = json.loads(path.read_bytes())
        if content["schema"] != PROVENANCE_SCHEMA:
            raise ValueError(f"schema {content['schema']!r}")
        _ = (
            content["files"].items(),
            content["checkpoint"]["digest"],
            [(x["asset"], x["digest"]) for x in content["chain"]],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LineageError(
            f"{directory} has no provenance",
            found=f"{path}: {error}",
            expected=f"{PROVENANCE_NAME} with schema {PROVENANCE_SCHEMA}",
            remedy="verify a directory created by registering a candidate",
        ) from error
    return dict(content)


def _same_file(directory: Path, name: str, expected: Any) -> None:
    path = join(directory, name, PROVENANCE_NAME, error=LineageError)
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        found = str(error)
    if found != expected["sha256"]:
        raise LineageError(
            f"the lineage of {directory} breaks at its first link: {name} has changed",
            found=found,
            expected=f"SHA-256 {expected['sha256']}",
            remedy="do not use this directory; registration recreates it from the content store",
        )
