"""A workspace from a small graph, with ages; what must be kept of it, computed from the graph alone."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace

#: Files written from here on are younger.
NOW = time.time()
DAY = 86400.0
OLD = NOW - 100 * DAY


@dataclass(frozen=True)
class Node:
    """A manifest: the numbers of its inputs, all smaller, and of its blobs."""

    inputs: frozenset[int]
    blobs: frozenset[int]


@dataclass
class Graph:
    """Nodes in a workspace, by number."""

    ctx: Context
    nodes: Sequence[Node]
    made: list[Manifest] = field(default_factory=list)

    def needed(self, roots: Iterable[int]) -> set[int]:
        """Return the numbers of all ancestors of the roots, including the roots."""
        found, waiting = set[int](), list(roots)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += self.nodes[number].inputs
        return found

    def blobs(self, numbers: Iterable[int]) -> set[str]:
        """MD5s of the blobs of nodes."""
        return {md5(blob) for number in numbers for blob in self.nodes[number].blobs}


def content(blob: int) -> bytes:
    return f"blob {blob}".encode()


def md5(blob: int) -> str:
    return hashlib.md5(content(blob)).hexdigest()


def build(folder: Path, nodes: Sequence[Node], spare: Iterable[int] = ()) -> Graph:
    """Save a graph, all of it old; `spare` blobs belong to no node."""
    graph = Graph(Context(Workspace(folder).ensure()), nodes)
    for number, node in enumerate(nodes):
        inputs = {str(one): graph.made[one].digest for one in node.inputs}
        graph.made.append(save(graph.ctx, number, inputs, node.blobs))
    for blob in spare:
        graph.ctx.store.put_bytes(content(blob))
    age(graph.ctx.workspace.root)
    return graph


def save(ctx: Context, number: int, inputs: Mapping[str, str], blobs: Iterable[int]) -> Manifest:
    parts = tuple(Part(name=f"part-{one:05d}", blob=ctx.store.put_bytes(content(one))) for one in sorted(blobs))
    made = Manifest(asset=f"a{number}/curated", step="s", version="1", params={}, inputs=inputs, parts=parts)
    ctx.refs.save(made)
    return made


def age(folder: Path, at: float = OLD) -> None:
    """Make every file below a folder as old."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


def stored(ctx: Context) -> set[str]:
    """MD5s of all blobs."""
    return {one.name for one in ctx.store.facts()}
