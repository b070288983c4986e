"""Reverse lineage: everything derived from a manifest, an asset, a source, a document or a commit.

A user names a target, which `origin` resolves to digests. The search finds the descendants of these digests, nearest
first, and the training runs that read any of them. Taints, versions and consumers belong to the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError
from plinth.extensions import nearest
from plinth.provenance.lineage import Edges, Ints, SavedEdges, current, key, search
from plinth.provenance.statements import SOURCE_STAGE
from plinth.records import Frozen, Manifest
from plinth.storage.state import MISTYPED
from plinth.training.attempts import HostFacts, known, stated, together
from plinth.training.checkpoint.checkpoint import committed
from plinth.training.config import RunConfig, load
from plinth.training.directory import RunDirectory

# Targets: a manifest, an asset, a source, a document or a commit, resolved to the digests where a search starts.
#
# asset      `web/curated`: every saved version of it
# source     a bucket (`web`), or the declared domain of one (`news.example`): what was read from it
# digest     of a manifest or of a source's inventory, or the beginning of one
# document   32 hexadecimal digits: the curated text that holds it
# commit     commit of a run, or digest of its code, image or libraries, from its trainer's attestation

HEXADECIMAL = re.compile(r"[0-9a-f]{7,64}")
DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
#: The stage whose text is used for training and evaluation: a document dropped before it affects nothing.
CURATED = "curated"

#: Keys of a provenance that describe data and identity; all other keys describe code and environment.
DATA = ("schema", "recipe", "run", "checkpoint", "files", "chain", "sources", "materials", "training")
#: The stage whose manifests name their training run.
RUN = "run"

#: The stage whose manifests list the files of a source.
INVENTORY_STAGE = "sources"

Kind = Literal["asset", "source", "digest", "document", "commit"]
State = Literal["published", "saved", "deleted"]


class ImpactOrigin(Frozen):
    """Target of an impact search, with the digests or asset keys from which its descendants are found.

    `runs` are the runs trained at a commit, including runs that published nothing.
    """

    kind: Kind
    target: str
    digests: tuple[str, ...]
    runs: tuple[str, ...] = ()


def origin(ctx: Context, target: str, known: SavedEdges | None = None) -> ImpactOrigin:
    """Resolve the name of a target to digests or asset keys.

    Args:
        ctx: workspace to search.
        target: asset, bucket, domain, digest, document id or commit.
        known: edges of the workspace, if the caller has already read them.

    Raises:
        MissingError: no target or more than one target has that name.
        IntegrityError: a saved manifest cannot be read.
    """
    edges = (known or current(ctx)).edges
    if target in edges.assets:
        return ImpactOrigin(kind="asset", target=target, digests=(target,))
    sources = _sources(ctx, edges, target)
    found = [ImpactOrigin(kind="source", target=target, digests=sources)] if sources else []
    if HEXADECIMAL.fullmatch(target):
        found += _by_digits(ctx, edges, target)
    if len(found) == 1:
        return found[0]
    raise MissingError(
        f"nothing is derived from {target!r}" if not found else f"{target!r} is ambiguous",
        found=", ".join(f"{each.kind} {each.target[:16]}" for each in found) or "no match in this workspace",
        expected="an asset, a bucket, a domain, a digest, a document's 32 digits, or a commit",
        remedy=(not found and nearest(target, edges.assets, cutoff=MISTYPED))
        or "`plinth status` lists assets and digests; `plinth explain` shows a document's id",
    )


def holders(ctx: Context, document: str, curated: Iterable[str]) -> tuple[str, ...]:
    """Return the digests in `curated` whose manifests contain a document."""
    return tuple(digest for digest in curated if holds(ctx, ctx.refs.load(digest), document))


def holds(ctx: Context, manifest: Manifest, document: str) -> bool:
    """Return True if a part of the manifest contains the document."""
    import pyarrow as pa  # imported here because readers of taints import this module, and few taints are on documents
    import pyarrow.compute as pc

    from plinth.storage.parts import iter_batches

    wanted = pa.scalar(bytes.fromhex(document), pa.binary(16))
    return any(
        pc.any(pc.equal(batch.column("id"), wanted)).as_py()
        for part in manifest.parts
        if part.rows
        for batch in iter_batches(ctx.store, part, ["id"])
    )


def of_stage(edges: Edges, stage: str) -> tuple[str, ...]:
    """Return the sorted digests of all saved manifests of a stage, in any bucket."""
    assets = [at for at, name in enumerate(edges.assets) if name.rsplit("/", 1)[-1] == stage]
    return tuple(sorted(edges.digest(node) for node in np.flatnonzero(np.isin(edges.asset, assets)).tolist()))


def beginning(edges: Edges, digits: str) -> tuple[str, ...]:
    """Return the digests of manifests and source inventories that begin with `digits`."""
    nodes = np.flatnonzero(np.char.startswith(edges.nodes, digits.encode()))
    return tuple(sorted(edges.digest(node) for node in nodes.tolist()))


def _by_digits(ctx: Context, edges: Edges, target: str) -> list[ImpactOrigin]:
    found = [ImpactOrigin(kind="digest", target=digest, digests=(digest,)) for digest in beginning(edges, target)]
    models, runs = _made_by(ctx, target), _trained_by(ctx, target)
    if models or runs:
        digests = tuple(sorted({*models, *_published(ctx, edges, runs)}))
        found.append(ImpactOrigin(kind="commit", target=target, digests=digests, runs=runs))
    if DOCUMENT_ID.fullmatch(target) and not found:
        held = holders(ctx, target, of_stage(edges, CURATED))
        found += [ImpactOrigin(kind="document", target=target, digests=held)] if held else []
    return found


def _sources(ctx: Context, edges: Edges, target: str) -> tuple[str, ...]:
    """Return the first asset of the bucket named `target`, or the inventories that have a source in the domain
    `target`."""
    own = tuple(name for name in (f"{target}/{INVENTORY_STAGE}", f"{target}/{SOURCE_STAGE}") if name in edges.assets)
    return own[:1] or tuple(
        digest for digest in of_stage(edges, INVENTORY_STAGE) if target in _domains(ctx.refs.load(digest))
    )


def _domains(manifest: Manifest) -> Iterator[str]:
    for source in manifest.params.get("sources", ()):
        yield str(source.get("domain", ""))


def _made_by(ctx: Context, digits: str) -> tuple[str, ...]:
    """Return the checkpoints whose provenance names a commit, code digest or environment digest that begins with
    `digits`.

    Checkpoints with damaged provenance are skipped.
    """
    found = set()
    for path in ctx.workspace.models.glob("*/provenance.json"):
        try:
            content = json.loads(path.read_bytes())
            stated = [value for name, value in content.items() if name not in DATA]
            if any(text.startswith(digits) for text in _texts(stated)):
                found.add(str(content["checkpoint"]["digest"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged models do not verify and are not loaded
    return tuple(sorted(found))


def _trained_by(ctx: Context, digits: str) -> tuple[str, ...]:
    """Return the runs trained with a commit, or with a digest of code, image or libraries, that begins with `digits`.

    All attempts and machines of a run are searched. The attestations are not verified here, because a forged
    attestation can only add runs to the result.
    """
    return tuple(
        path.name
        for path in sorted(ctx.workspace.runs.glob("*"))
        if any(text.startswith(digits) for host in _hosts(RunDirectory(path)) for text in _software(host))
    )


def _hosts(run: RunDirectory) -> Iterator[HostFacts]:
    try:
        for envelope in known(run):
            yield from stated(envelope, run.root.name).hosts
    except (OSError, PlinthError):
        return  # damaged statements: the run's checkpoints cannot be registered


def _software(host: HostFacts) -> tuple[str, ...]:
    return host.commit, host.image_digest, host.lockfile, host.distributions, *host.code.values(), together(host.code)


def _published(ctx: Context, edges: Edges, runs: tuple[str, ...]) -> Iterator[str]:
    """Yield the digests of the saved manifests that `runs` produced."""
    for digest in of_stage(edges, RUN) if runs else ():
        with suppress(MissingError):  # deleted after indexing
            if ctx.refs.load(digest).stats.get("run_id") in runs:
                yield digest


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


@dataclass(frozen=True, slots=True)
class Descendant:
    """Saved manifest that is derived from the origin. `steps` is the length of the shortest path from the origin. The
    origin itself has 0 steps.

    `state` is `published`; `saved`, if the manifest was published earlier or is read without being published (a
    comparison, an evaluated checkpoint); or `deleted`.
    """

    asset: str
    digest: str
    steps: int
    state: State


class AssetLink(NamedTuple):
    """Link from an asset to an asset derived from it, with the number of linked manifests."""

    source: str
    target: str
    manifests: int


@dataclass(frozen=True)
class Descent:
    """All descendants of a target (nearest first, then by asset and digest), and the links between their assets."""

    manifests: tuple[Descendant, ...]
    links: tuple[AssetLink, ...] = ()

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(each.digest for each in self.manifests)


def downstream(ctx: Context, origins: Iterable[str]) -> tuple[Descendant, ...]:
    """Return everything derived from the origins, nearest first, then by asset and digest.

    Args:
        origins: digests of manifests or source inventories, or asset keys (every saved version of these assets).

    Raises:
        IntegrityError: a saved manifest cannot be read. It is not skipped, because a taint must reach all descendants.
    """
    return descent(ctx, origins).manifests


def descent(ctx: Context, origins: Iterable[str], known: SavedEdges | None = None) -> Descent:
    """Return the descendants of the origins, in the order of `downstream`, and the links between their assets.

    Args:
        ctx: workspace to search.
        origins: digests or asset keys, as for `downstream`.
        known: edges of the workspace, if the caller has already read them.

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
    """Return the nodes of the digests in `origins`, and the nodes of all manifests of the assets in `origins`.

    If a start is a manifest that lists source inventories, the inventories are starts too. Data read from a source has
    the inventory as its input, and not the manifest that lists the inventory.
    """
    known = {key(origin) for origin in origins}
    nodes = np.flatnonzero(np.isin(edges.nodes, np.array(sorted(known), edges.nodes.dtype))).tolist()
    wanted = [number for number, name in enumerate(edges.assets) if name in origins]
    nodes += np.flatnonzero(np.isin(edges.asset, wanted)).tolist()
    lists = [node for node in nodes if edges.name(node).rsplit("/", 1)[-1] == INVENTORY_STAGE]
    return [*nodes, *edges.inputs[np.isin(edges.consumers, lists)].tolist()]


def _links(edges: Edges, distance: Ints) -> tuple[AssetLink, ...]:
    """Return the links between assets, each with the number of edges whose source manifest is among the descendants."""
    inside = np.flatnonzero((distance[edges.inputs] >= 0) & (edges.asset[edges.inputs] >= 0))
    sources, targets = edges.asset[edges.inputs[inside]], edges.asset[edges.consumers[inside]]
    pairs, counts = np.unique(sources.astype(np.int64) * len(edges.assets) + targets, return_counts=True)
    names = edges.assets
    found = [
        AssetLink(names[pair // len(names)], names[pair % len(names)], number)
        for pair, number in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return tuple(sorted(found))


class AffectedRun(Frozen):
    """Run that read derived data, with the steps of its committed checkpoints that are still on disk."""

    run_id: str
    checkpoints: tuple[int, ...]


def affected_runs(
    ctx: Context, digests: Collection[str], named: Collection[str] = (), exported: Collection[str] = ()
) -> tuple[AffectedRun, ...]:
    """Return the runs in `named` and the runs that read any of `digests`, sorted by name.

    A run reads its mixture, shards, tokenizer, canaries, held-out text and probes. Runs that failed before their first
    commit have no output and are omitted. Runs in `exported` have output elsewhere if their checkpoints are deleted.

    Raises:
        TrainingError: a run's configuration cannot be read.
    """
    found = []
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        config = load(path)
        steps = tuple(committed(RunDirectory(path.parent)))
        output = steps or config.run_id in exported
        if output and (config.run_id in named or any(digest in digests for digest in read_by(config))):
            found.append(AffectedRun(run_id=config.run_id, checkpoints=steps))
    return tuple(found)


def read_by(config: RunConfig) -> Iterator[str]:
    """Yield the digests in a run's configuration: data, tokenizer, held-out text, probes and initial models."""
    yield from (config.mixture, config.tokenizer, *config.shards.values(), config.heldout, config.probes)
    yield from _texts(config.provenance)
