"""Manifests and the links between them as arrays: what a search over 10⁵ manifests reads in milliseconds.

A node is a digest: of a manifest, or of an inventory that a manifest names as its input. Nodes keep their number when
others are added. Edges lead from an input to its consumer and are sorted by input, so that the consumers of a node are
one slice.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Characters of a node: a SHA-256 in hexadecimal. Any other input is known by the SHA-256 of its text.
WIDTH = 64
FORMAT = 1
NOT_SAVED = -1  # the asset of a node that no saved manifest has

Ints = NDArray[np.int32]


class SavedLinks(NamedTuple):
    """What the edges need of one manifest."""

    digest: str
    asset: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Edges:
    """n nodes, m edges.

    Args:
        nodes: [n] digests.
        asset: [n] index into `assets`, or `NOT_SAVED`.
        assets: names.
        inputs, consumers: [m] nodes at the two ends of an edge, sorted by input.
    """

    nodes: NDArray[np.bytes_]
    asset: Ints
    assets: tuple[str, ...]
    inputs: Ints
    consumers: Ints

    @property
    def saved(self) -> NDArray[np.bytes_]:
        """Digests of the manifests."""
        found: NDArray[np.bytes_] = self.nodes[self.asset != NOT_SAVED]
        return found

    def digest(self, node: int) -> str:
        return bytes(self.nodes[node]).decode()

    def name(self, node: int) -> str:
        """The asset of a node; empty for one that is no manifest."""
        number = int(self.asset[node])
        return "" if number == NOT_SAVED else self.assets[number]


def none() -> Edges:
    """Of an empty workspace."""
    no = np.empty(0, np.int32)
    return Edges(np.empty(0, f"S{WIDTH}"), no, (), no, no)


def key(digest: str) -> bytes:
    """How a digest is written in a node."""
    if len(digest) <= WIDTH and digest.isascii() and "\0" not in digest:
        return digest.encode()
    return hashlib.sha256(digest.encode(errors="surrogatepass")).hexdigest().encode()


def grown(edges: Edges, found: Iterable[SavedLinks]) -> Edges:
    """These edges with those of further manifests, none of which they have."""
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
    """Distance of every node from the nearest start, by breadth; -1 where none leads to it. [n]"""
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
    """The edges as bytes: an uncompressed `.npz` without pickles."""
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
    """What `encoded` wrote.

    Raises:
        ValueError: it is of another format.
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
    """The numbers of all half-open ranges, one range after the other."""
    sizes = ends - begins
    offsets = np.repeat(begins - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    found: NDArray[Any] = np.arange(int(sizes.sum())) + offsets
    return found
