"""Everything made, directly or not, of digests or assets: nearest first, with the links between the assets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from plinth.compute.context import Context
from plinth.provenance.edges import Edges, Ints, SavedEdges, current, key, search

State = Literal["published", "saved", "deleted"]

#: The stage whose manifests list the files of a source.
INVENTORY_STAGE = "sources"


@dataclass(frozen=True, slots=True)
class Descendant:
    """A saved manifest with the origin in its ancestry. `steps` is the shortest way to it; 0 is the origin.

    `state`: published now; saved, because it was published earlier or is read without being published (a comparison,
    a checkpoint that was evaluated); or deleted since.
    """

    asset: str
    digest: str
    steps: int
    state: State


class AssetLink(NamedTuple):
    """One asset that another was made of, and how many manifests of the two are linked."""

    source: str
    target: str
    manifests: int


@dataclass(frozen=True)
class Descent:
    """What came of something: manifests, nearest first, then by asset and digest; and how their assets are linked."""

    manifests: tuple[Descendant, ...]
    links: tuple[AssetLink, ...] = ()

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(each.digest for each in self.manifests)


def downstream(ctx: Context, origins: Iterable[str]) -> tuple[Descendant, ...]:
    """Everything made of the origins, nearest first, then by asset and digest.

    Args:
        origins: digests of manifests or source inventories, or asset keys (every saved version of them).

    Raises:
        IntegrityError: a saved manifest cannot be read; a mark must not miss what it hides.
    """
    return descent(ctx, origins).manifests


def descent(ctx: Context, origins: Iterable[str], known: SavedEdges | None = None) -> Descent:
    """As `downstream`, with the links between assets.

    Args:
        known: the edges, where they were read a moment ago.

    Raises:
        IntegrityError: a saved manifest cannot be read.
    """
    edges, present = known or current(ctx)
    distance = search(edges, _starts(edges, set(origins)))
    nodes = np.flatnonzero((distance >= 0) & (edges.asset >= 0))
    digests = [digest.decode() for digest in edges.nodes[nodes].tolist()]
    names = [edges.assets[number] for number in edges.asset[nodes].tolist()]
    found = sorted(zip(distance[nodes].tolist(), names, digests, strict=True))
    published = {ref.digest for ref in ctx.refs.all()}

    def state(digest: str) -> State:
        return "published" if digest in published else "saved" if digest in present else "deleted"

    manifests = tuple(Descendant(asset, digest, steps, state(digest)) for steps, asset, digest in found)
    return Descent(manifests=manifests, links=_links(edges, distance))


def _starts(edges: Edges, origins: set[str]) -> list[int]:
    """Nodes of these digests, and of every manifest of these assets.

    What was read from a source names its inventory as an input, not the manifest that lists it: a search from the list
    starts at the inventory too.
    """
    known = {key(origin) for origin in origins}
    nodes = np.flatnonzero(np.isin(edges.nodes, np.array(sorted(known), edges.nodes.dtype))).tolist()
    wanted = [number for number, name in enumerate(edges.assets) if name in origins]
    nodes += np.flatnonzero(np.isin(edges.asset, wanted)).tolist()
    lists = [node for node in nodes if edges.name(node).rsplit("/", 1)[-1] == INVENTORY_STAGE]
    return [*nodes, *edges.inputs[np.isin(edges.consumers, lists)].tolist()]


def _links(edges: Edges, distance: Ints) -> tuple[AssetLink, ...]:
    """Edges inside the descent, counted by the assets at their ends."""
    inside = np.flatnonzero((distance[edges.inputs] >= 0) & (edges.asset[edges.inputs] >= 0))
    sources, targets = edges.asset[edges.inputs[inside]], edges.asset[edges.consumers[inside]]
    pairs, counts = np.unique(sources.astype(np.int64) * len(edges.assets) + targets, return_counts=True)
    names = edges.assets
    found = [
        AssetLink(names[pair // len(names)], names[pair % len(names)], number)
        for pair, number in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return tuple(sorted(found))
