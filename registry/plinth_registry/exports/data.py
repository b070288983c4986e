"""Text, tokens and files of a manifest that leave the workspace: what is tainted stays, and each export is noted."""

from __future__ import annotations

from collections.abc import Iterable

from plinth.compute.context import Context
from plinth.errors import GateError
from plinth.provenance.statements import Chain
from plinth.records import Manifest
from plinth_registry import taint
from plinth_registry.exports.sealed import record


def leave(ctx: Context, manifests: Iterable[Manifest], to: str, *, unreleased: bool = False) -> None:
    """Let manifests be written to a place outside; called before the first byte is.

    Args:
        to: folder or URI.
        unreleased: whether a checkpoint may leave without being a release.

    Raises:
        GateError: one of them, or what it was made of, is tainted; or it is a checkpoint.
        SignatureError: the log of marks does not hold.
    """
    going = list(manifests)
    marks = taint.marks_on(ctx, Chain(links=()), [one.digest for one in going])
    if marks:
        raise GateError(
            f"what would be written to {to} is tainted",
            found="; ".join(mark.removeprefix("evidence: ") for mark in marks),
            remedy="leave it out; or make it again without what was marked",
        )
    for one in going:
        if one.asset == "checkpoint" and not unreleased:
            raise GateError(
                f"{one.digest[:12]} is a checkpoint",
                expected="a release, which `plinth export model` signs with its papers",
                remedy="--unreleased writes its files without any of that",
            )
    for one in going:
        status = "UNRELEASED" if one.asset == "checkpoint" else "data"
        record(ctx, name=one.asset, status=status, subject=one.digest, to=to)
