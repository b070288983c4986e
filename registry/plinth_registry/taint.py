"""Taints: compliance declares a manifest, source or document unfit, and everything derived from it is frozen.

    mark      compliance declares an artifact unfit, with author and reason
    lift      compliance lifts the taint, with author and reason; the taint stays in the log

Both are records of one signed log (`taint/`). No record can be edited, removed or forged unnoticed. Gates and loaders
read the log each time, so a taint stops promotion and loading even if MLflow is unreachable, and an unreadable log
stops both. Rolling back is a separate decision (`promotion.rollback`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import LineageError, MissingError, PlinthError, SignatureError
from plinth.provenance.impact import (
    CURATED,
    DOCUMENT_ID,
    INVENTORY_STAGE,
    Descendant,
    beginning,
    downstream,
    holders,
    holds,
    of_stage,
)
from plinth.provenance.lineage import current
from plinth.provenance.statements import Chain
from plinth.records import Frozen
from plinth.trust.dsse import COMPLIANCE
from plinth.trust.log_record import LogRecord
from plinth_registry import releases
from plinth_registry.audit_log import MARKS

DIGEST = re.compile(r"[0-9a-f]{8,64}")


class Taint(Frozen):
    """Taint with target, person, reason and time. For a document, it also lists the curated manifests that were
    searched, and the curated manifests that contain the document."""

    kind: Literal["manifest", "document"]
    target: str
    by: str
    reason: str
    at: str = ""
    searched: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


class TaintStatement(Frozen):
    """Verified record of the taint log: a taint, or the lifting of an earlier taint with the number `lifts`."""

    number: int
    action: Literal["mark", "lift"]
    mark: Taint
    lifts: int | None = None
    by: str
    reason: str
    at: str
    signed_by: tuple[str, ...] = ()
    standing: bool = False


def mark(ctx: Context, target: str, by: str, reason: str) -> Taint:
    """Taint a manifest or source inventory (by a digest or a unique prefix of it) or a document (by 32 hex digits).

    If a target is tainted again, the first taint is returned. A source is tainted through the inventory of its files,
    which is named in everything that was read from the source.

    Raises:
        MissingError: the workspace has no such artifact.
        SignatureError: there is no compliance key on this machine, or the log does not verify.
    """
    if DOCUMENT_ID.fullmatch(target):
        searched = of_stage(current(ctx).edges, CURATED)
        record = Taint(
            kind="document",
            target=target,
            by=by,
            reason=reason,
            searched=searched,
            holders=holders(ctx, target, searched),
        )
    else:
        record = Taint(kind="manifest", target=resolve(ctx, target), by=by, reason=reason)
    for standing in records(ctx):
        if standing.target == record.target:
            return standing
    body = {"action": "mark", "mark": record.model_dump(mode="json", exclude={"at"}), "by": by, "reason": reason}
    made = MARKS.append(ctx, body, _subject(record), COMPLIANCE)
    return record.model_copy(update={"at": made.at})


def lift(ctx: Context, target: str, by: str, reason: str) -> TaintStatement:
    """Lift the taint on a target, which is given by its digest or document ID, or a unique prefix of it.

    Raises:
        MissingError: no active taint has that target.
        SignatureError: there is no compliance key on this machine, or the log does not verify.
    """
    standing = [one for one in statements(ctx) if one.standing and one.mark.target.startswith(target)]
    if len(standing) != 1 or len(target) < 8:
        raise MissingError(
            f"no active taint on {target!r}",
            found=f"{len(standing)} active taints",
            expected="the target of an active taint, with at least 8 digits",
            remedy="list taints and their targets with `plinth release taint list`",
        )
    (marked,) = standing
    body = {
        "action": "lift",
        "mark": marked.mark.model_dump(mode="json"),
        "lifts": marked.number,
        "by": by,
        "reason": reason,
    }
    made = MARKS.append(ctx, body, _subject(marked.mark), COMPLIANCE)
    return _statement(made)


def statements(ctx: Context) -> tuple[TaintStatement, ...]:
    """Return the whole history of taints, oldest first: active taints, lifted taints, and the records that lift them.

    Raises:
        SignatureError: a record was edited, removed, moved or forged. Callers then stop promotion and loading.
    """
    found = {record.number: _statement(record) for record in releases.log_records(ctx, MARKS)}
    for one in [each for each in found.values() if each.action == "lift"]:
        lifted = found.get(one.lifts or 0)
        if lifted is None or lifted.action != "mark" or lifted.number >= one.number:
            raise SignatureError(
                f"record {one.number} of taint/ does not name an existing taint to lift", found=one.lifts
            )
        found[lifted.number] = lifted.model_copy(update={"standing": False})
    return tuple(found.values())


def records(ctx: Context) -> tuple[Taint, ...]:
    """Return all active taints, oldest first.

    Raises:
        SignatureError: a record of the taint log was edited, removed, moved or forged.
    """
    return tuple(one.mark for one in statements(ctx) if one.standing)


def marks_on(ctx: Context, chain: Chain, evidence: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the reasons why an artifact is tainted, one sentence for each taint on its ancestors or on its evidence.

    Args:
        chain: the ancestors of the artifact.
        evidence: manifests of measurements; a taint on an input of these manifests taints the evidence.

    Raises:
        SignatureError: the taint log does not verify.
        LineageError: a manifest of the evidence cannot be read.
    """
    standing = records(ctx)
    if not standing:
        return ()
    names = {link.digest: link.asset for link in chain.links} | {digest: key for key, digest in chain.sources.items()}
    behind = {digest: name for digest, name in _ancestry(ctx, evidence).items() if digest not in names}
    found = []
    for record in standing:
        for known, words in ((names, ""), (behind, "evidence: ")):
            hit = _hit(ctx, record, known)
            if hit is not None:
                target = f"{record.kind} {record.target[:12]}"
                found.append(f"{words}{hit} ({target}) is tainted by {record.by}: {record.reason}")
                break
    return tuple(found)


def affected(ctx: Context, record: Taint) -> tuple[Descendant, ...]:
    """Return every saved manifest that a taint freezes: the tainted manifest and everything derived from it."""
    return downstream(ctx, [record.target] if record.kind == "manifest" else record.holders)


def frozen(ctx: Context) -> frozenset[str]:
    """Return the digest of every saved manifest that an active taint freezes.

    Raises:
        SignatureError: the taint log does not verify.
    """
    return frozenset(each.digest for record in records(ctx) for each in affected(ctx, record))


def resolve(ctx: Context, digest: str) -> str:
    """Return the full digest of a manifest or source inventory, given a unique prefix of the digest.

    Raises:
        MissingError: no artifact, or more than one artifact, has a digest with this prefix.
    """
    edges = current(ctx).edges
    found = beginning(edges, digest) if DIGEST.fullmatch(digest) else ()
    if len(found) != 1:
        raise MissingError(
            f"no artifact {digest!r}",
            found=f"{len(found)} manifests or sources match",
            expected="a digest (at least the first 8 digits), or a document ID of 32 digits",
            remedy="list digests with `plinth status`; find the ID of a document with `plinth explain URI`",
        )
    if found[0] not in of_stage(edges, INVENTORY_STAGE):
        return found[0]
    return next(iter(ctx.refs.load(found[0]).inputs.values()), found[0])


def _statement(record: LogRecord) -> TaintStatement:
    body = record.body
    try:
        return TaintStatement(
            number=record.number,
            action=body["action"],
            mark=Taint.model_validate({**body["mark"], **({"at": record.at} if body["action"] == "mark" else {})}),
            lifts=body.get("lifts"),
            by=body["by"],
            reason=body["reason"],
            at=record.at,
            signed_by=record.owners,
            standing=body["action"] == "mark",
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of taint/ is not a taint statement", found=error) from error


def _subject(record: Taint) -> dict[str, str]:
    digest = record.target if len(record.target) == 64 else fingerprint.digest(record.target)
    return {record.kind: digest}


def _hit(ctx: Context, record: Taint, names: Mapping[str, str]) -> str | None:
    """Return the name of the tainted artifact among these manifests and inventories, or None if none of them is
    tainted."""
    if record.kind == "manifest":
        return names.get(record.target)
    return next((names[digest] for digest in _holding(ctx, record, names)), None)


def _holding(ctx: Context, record: Taint, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the digests of the curated manifests that contain a tainted document, including manifests that are newer
    than the taint."""
    for digest, asset in names.items():
        known = digest in record.searched or asset.rsplit("/", 1)[-1] != CURATED
        held = digest in record.holders if known else holds(ctx, ctx.refs.load(digest), record.target)
        if held:
            yield digest


def _ancestry(ctx: Context, evidence: Iterable[str]) -> dict[str, str]:
    """Return the names of all direct and indirect inputs of the given manifests, by digest."""
    names: dict[str, str] = {}
    waiting = [(digest, digest) for digest in evidence]
    while waiting:
        key, digest = waiting.pop()
        if digest in names:
            continue
        try:
            manifest = ctx.refs.load(digest)
        except MissingError:
            names[digest] = key  # an inventory: only its digest is recorded
            continue
        except PlinthError as error:
            raise LineageError(
                f"evidence depends on manifest {digest}, which cannot be read", found=error, remedy="restore it"
            ) from error
        names[digest] = manifest.asset
        waiting += manifest.inputs.items()
    return names
