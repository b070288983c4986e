"""Readers of a signed log refuse an invalid one; `test_signed_log` covers every kind of invalidity."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.corpus.exclusions import EXCLUSIONS
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth_registry import audit_log, candidate, consumers, freeze, incidents, policy, releases, taint
from plinth_registry.audit_log import AUDIT, CONSUMERS, FEED, INCIDENTS, MARKS, RELEASES, policies
from tests.registry.conftest import Line, small_policy
from tests.registry.test_releases import write


def _mark(ctx: Context, line: Line) -> None:
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")


def _tell(ctx: Context, line: Line) -> None:
    _mark(ctx, line)
    freeze.catch_up_feed(ctx)


def _enrol(ctx: Context, line: Line) -> None:
    known = {"child": "kid/1", "parent": line.checkpoint.digest, "digest": None, "made": "2099-01-01T00:00:00+00:00"}
    consumers._add(ctx, "enrol", consumers.Consumer(name="kid", owner="kid@example.org", **known))


def _list(ctx: Context, _: Line) -> None:
    exclusions.append(ctx, kind="domain", value="a.example", found=3, reason="a letter")


def _promote(ctx: Context, _: Line) -> None:
    audit_log.record(ctx, audit_log.AuditedAction("promote", "demo-candidate version 1", "ops", "better"))


def _marked(ctx: Context, line: Line) -> object:
    return taint.marks_on(ctx, candidate.ancestry(ctx, line.checkpoint.digest, line.evaluation.digest))


Use = Callable[[Context, Line], object]
#: By what is read: its log, how one record of it is made, and who reads it.
READERS: dict[str, tuple[SignedLog, Use, tuple[Use, ...]]] = {
    "marks": (MARKS, _mark, (lambda ctx, _: taint.records(ctx), _marked)),
    "feed": (FEED, _tell, (lambda ctx, _: freeze.feed_entries(ctx), lambda ctx, _: freeze.catch_up_feed(ctx))),
    "consumers": (CONSUMERS, _enrol, (lambda ctx, _: consumers.enrolled(ctx),)),
    "decisions": (AUDIT, _promote, (lambda ctx, _: audit_log.entries(ctx),)),
    "incidents": (
        INCIDENTS,
        lambda ctx, _: incidents.declare(ctx, "bad shard", "ben@example.org"),
        (lambda ctx, _: incidents.open_ones(ctx), lambda ctx, _: incidents.require_none(ctx)),
    ),
    "releases": (RELEASES, lambda ctx, _: write(ctx, "1"), (lambda ctx, _: releases.history(ctx),)),
    "policies": (
        policies("demo"),
        lambda ctx, _: policy.sign(ctx, small_policy("demo")),
        (lambda ctx, _: policy.current(ctx, "demo"), lambda ctx, _: policy.history(ctx, "demo")),
    ),
    "exclusions": (EXCLUSIONS, _list, (lambda ctx, _: exclusions.read(ctx), _list)),
}


def _removed(path: Path, _: Trust) -> None:
    path.unlink()


def _edited(path: Path, _: Trust) -> None:
    whole = json.loads(path.read_bytes())
    envelope = whole.get("envelope", whole)
    payload = base64.b64decode(envelope["payload"]).replace(b"20", b"30", 1)
    envelope["payload"] = base64.b64encode(payload).decode()
    path.write_text(json.dumps(whole))


def _by_another_role(path: Path, trust: Trust) -> None:
    whole: dict[str, Any] = json.loads(path.read_bytes())
    made = dsse.seal(dsse.unverified(whole.get("envelope", whole), "it"), trust.signer(TRAINER))
    path.write_text(json.dumps(whole | {"envelope": made} if "envelope" in whole else made))


@pytest.mark.parametrize("attack", [_removed, _edited, _by_another_role])
@pytest.mark.parametrize("what", READERS)
def test_a_log_that_does_not_hold_is_read_by_nobody(
    ctx: Context, line: Line, what: str, attack: Callable[[Path, Trust], None]
) -> None:
    log, make, readers = READERS[what]
    make(ctx, line)
    attack(max((ctx.workspace.root / log.name).glob("0*.json")), Trust.of(ctx.workspace))
    for read in readers:
        with pytest.raises(SignatureError, match=r"are missing|is invalid"):
            read(ctx, line)
