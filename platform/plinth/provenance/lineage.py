"""Walk from a manifest to the raw sources and prove every link on the way.

A link holds when the manifest's bytes give its digest and every blob it names gives its SHA-256. The
walk starts at the target and goes towards the sources, so the first broken link is the nearest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import LineageError, PlinthError
from plinth.provenance.statements import PROVENANCE_SCHEMA, Chain, Link, chain
from plinth.records import Frozen, Manifest, Part
from plinth.storage.safe_path import join
from plinth.storage.state import resolve

PROVENANCE_NAME = "provenance.json"
HASHING_THREADS = 4  # hashing leaves the interpreter lock, reading waits for the disk


class Verified(Frozen):
    """The extent of a verification. `complete` is False when blobs were only looked for, not read."""

    asset: str
    digest: str
    manifests: int
    blobs: int
    bytes: int
    sources: dict[str, str]
    complete: bool


def walk(ctx: Context, digest: str) -> Chain:
    """The ancestry of the manifest with this digest (or unambiguous prefix), inputs before what uses them.

    Raises:
        MissingError: no such manifest.
        LineageError: a manifest on the way is missing or changed, or no raw source is reached.
    """
    return chain(ctx.refs, resolve(ctx.refs, digest))


def verify(ctx: Context, target: Manifest | Path | str, *, fast: bool = False) -> Verified:
    """Prove a manifest, or a checkpoint directory with `provenance.json`, down to its raw sources.

    Args:
        target: a manifest, its digest (or prefix), or the directory.
        fast: look for every blob and its length, without reading it.

    Raises:
        LineageError: names the first broken link, from the target towards the sources.
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
    """Every part once, the target's first."""
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
        f"the lineage breaks at {link.asset} {link.digest[:12]}: {part.name} does not hold",
        found=error.found or error.what,
        expected=error.expected or f"SHA-256 {part.blob.sha256}",
        remedy="restore the blob from a remote, or delete it and run the recipe again",
    )


def _verify_directory(ctx: Context, directory: Path, fast: bool) -> Verified:
    """The files are those of the provenance, and its chain is the one that the workspace can prove."""
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
            remedy="verify in the workspace that made it, or pull the manifest from a remote",
        ) from error
    claimed = {(link["asset"], link["digest"]) for link in provenance["chain"]}
    proved = {(link.asset, link.digest) for link in chain(ctx.refs, manifest).links}
    if claimed != proved:
        raise LineageError(
            f"{directory / PROVENANCE_NAME} has another ancestry than its checkpoint",
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
            remedy="verify a directory that registering a candidate has made",
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
            remedy="do not use this directory; it is made again from the content store when it is registered",
        )
