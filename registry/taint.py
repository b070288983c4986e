"""Taint: a manifest, a source or a document is marked as unfit, and everything made of it is frozen.

A mark is a small file that is only ever added. Gates read the marks each time, so a mark stops a promotion even when
MLflow could not be reached to show it. Rolling back is a decision of its own (`promotion.rollback`); this module only
lists the affected manifests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from plinth.provenance.impact.descendants import Descendant, downstream
from plinth.provenance.statements import Chain
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.parts import iter_batches
from registry.clock import now

DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
DIGEST = re.compile(r"[0-9a-f]{8,64}")

#: The stage whose text trains and evaluates: a document that was dropped before it affects nothing.
CURATED = "curated"


class Taint(Frozen):
    """One mark: target, person, reason, time. For a document, the curated manifests searched and those holding it."""

    kind: Literal["manifest", "document"]
    target: str
    by: str
    reason: str
    at: str
    searched: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


def mark(ctx: Context, target: str, by: str, reason: str) -> Taint:
    """Mark a manifest or source inventory (digest, or a unique beginning of it) or a document (32 hex digits).

    Marking the same thing again returns the first mark.

    Raises:
        MissingError: nothing in this workspace has that identity.
    """
    earlier = {record.target: record for record in records(ctx)}
    if DOCUMENT_ID.fullmatch(target):
        if target in earlier:
            return earlier[target]
        searched = tuple(digest for digest, _ in _curated(ctx))
        holders = tuple(digest for digest, manifest in _curated(ctx) if _holds(ctx, manifest, target))
        record = Taint(
            kind="document", target=target, by=by, reason=reason, at=now(), searched=searched, holders=holders
        )
    else:
        target = resolve(ctx, target)
        if target in earlier:
            return earlier[target]
        record = Taint(kind="manifest", target=target, by=by, reason=reason, at=now())
    path = ctx.workspace.taint / f"{fingerprint.digest({'kind': record.kind, 'target': record.target})[:16]}.json"
    write_bytes(path, record.model_dump_json(indent=1).encode())
    return record


def records(ctx: Context) -> tuple[Taint, ...]:
    """Every mark, oldest first.

    Raises:
        IntegrityError: a mark cannot be read; freezing on doubt is safer than promoting.
    """
    found = []
    for path in ctx.workspace.taint.glob("*.json"):
        try:
            found.append(Taint.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise IntegrityError(f"{path} is not a mark", found=error, remedy="restore it from a backup") from error
    return tuple(sorted(found, key=lambda record: (record.at, record.target)))


def marks_on(ctx: Context, chain: Chain) -> tuple[str, ...]:
    """Reasons for which the end of this chain is tainted, one sentence per mark; empty when it is not."""
    names = {link.digest: link.asset for link in chain.links} | {digest: key for key, digest in chain.sources.items()}
    found = []
    for record in records(ctx):
        if record.kind == "manifest":
            hit = names.get(record.target)
        else:
            hit = next((names[digest] for digest in _holding(ctx, chain, record)), None)
        if hit is not None:
            found.append(f"{hit} ({record.kind} {record.target[:12]}) is marked by {record.by}: {record.reason}")
    return tuple(found)


def affected(ctx: Context, record: Taint) -> tuple[Descendant, ...]:
    """Every saved manifest that a mark freezes: the marked one and all that was made of it."""
    return downstream(ctx, [record.target] if record.kind == "manifest" else record.holders)


def resolve(ctx: Context, digest: str) -> str:
    """The full digest of a manifest or source inventory, from a unique beginning of it.

    Raises:
        MissingError: no such thing, or more than one.
    """
    found: set[str] = set()
    if DIGEST.fullmatch(digest):
        for path in ctx.refs.saved():
            found.update(name for name in (path.stem, *_inputs(path.read_bytes())) if name.startswith(digest))
    if len(found) != 1:
        raise MissingError(
            f"nothing to mark under {digest!r}",
            found=f"{len(found)} manifests or sources whose digest begins so",
            expected="a digest (at least 8 of its digits), or a document's 32 digits",
            remedy="`plinth status` lists digests; `plinth explain` shows a document's id",
        )
    return found.pop()


def _holding(ctx: Context, chain: Chain, record: Taint) -> Iterator[str]:
    """Curated manifests of a chain that hold a marked document, also those made after it was marked."""
    for link in chain.links:
        known = link.digest in record.searched or link.asset.rsplit("/", 1)[-1] != CURATED
        held = link.digest in record.holders if known else _holds(ctx, ctx.refs.load(link.digest), record.target)
        if held:
            yield link.digest


def _curated(ctx: Context) -> Iterator[tuple[str, Manifest]]:
    for path in ctx.refs.saved():
        asset = str(_json(path.read_bytes()).get("asset", ""))
        if asset.rsplit("/", 1)[-1] == CURATED:
            yield path.stem, ctx.refs.load(path.stem)


def _holds(ctx: Context, manifest: Manifest, document: str) -> bool:
    wanted = pa.scalar(bytes.fromhex(document), pa.binary(16))
    return any(
        pc.any(pc.equal(batch.column("id"), wanted)).as_py()
        for part in manifest.parts
        if part.rows
        for batch in iter_batches(ctx.store, part, ["id"])
    )


def _inputs(data: bytes) -> Iterable[str]:
    inputs = _json(data).get("inputs")
    return inputs.values() if isinstance(inputs, dict) else ()


def _json(data: bytes) -> dict[str, Any]:
    """A manifest as plain JSON: only its links are read here, and damage is found where it is used."""
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
