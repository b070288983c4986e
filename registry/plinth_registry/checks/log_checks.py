"""Lines about records that are only ever added: each log verifies, and the head that names their newest is fresh."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed, warned
from plinth.operation.checklists.scope import CheckScope
from plinth.trust.authority import time_of
from plinth_registry import releases
from plinth_registry.signed_log import AUDIT, beside_releases

#: A head that was signed so much later than now has met a wrong clock: it would hold for that much longer.
AHEAD_DAYS: Final = 1 / 24


def audit_proved(scope: CheckScope) -> CheckAnswer:
    """Every decision is signed and chained, and none that a release names is missing."""
    proof = releases.prove_log(scope.ctx)
    return passed(f"{proof.entries} entries, {len(proof.anchors)} release records name one of them")


def logs_hold(scope: CheckScope) -> CheckAnswer:
    """Every other signed log verifies, and continues from what the head of the releases names."""
    own = (AUDIT.name, "policies")  # lines of their own: `audit-log`, `gate-policy`
    others = [log for log in beside_releases(scope.ctx) if not log.name.startswith(own)]
    counts = {log.name: len(releases.log_records(scope.ctx, log)) for log in others}
    return passed(", ".join(f"{name} {count}" for name, count in counts.items() if count) or "all are empty")


def head_fresh(scope: CheckScope) -> CheckAnswer:
    """The head of the release history verifies and is signed again in time."""
    found = releases.history(scope.ctx)
    if not found:
        return not_applicable("nothing was released")
    until = releases.head_expires(scope.ctx)
    left = (time_of(until) - datetime.fromtimestamp(scope.now, UTC)).total_seconds() / 86400
    words = f"{len(found)} records, head valid until {until}"
    if left > releases.HEAD_DAYS + AHEAD_DAYS:
        ahead = f"signed {left - releases.HEAD_DAYS:.1f} days from now"
        return warned(f"{words}: {ahead}, so that a clock was wrong then or is now")
    late = left < releases.HEAD_DAYS - 2 * releases.REFRESH_DAYS
    return warned(f"{words}: nobody signs it daily") if late else passed(words)


def sealed(scope: CheckScope) -> CheckAnswer:
    """Every published reference is sealed by a worker of this workspace."""
    published = list(scope.ctx.refs.all())
    if not published:
        return not_applicable("nothing is published")
    bare = [one.asset for one in published if one.seal is None]
    foreign = [one.asset for one in published if one.seal is not None and not _own(scope, one.asset)]
    if bare or foreign:
        return failed("; ".join(f"{word}: {', '.join(names[:5])}" for word, names in
                                (("no seal", bare), ("a seal of somebody else", foreign)) if names))  # fmt: skip
    return passed(f"{len(published)} references")


def _own(scope: CheckScope, asset: str) -> bool:
    from plinth.errors import SealError

    try:
        scope.ctx.refs.ref(asset)
    except SealError:
        return False
    return True


CHECKS = (
    Check(
        "audit-log", "every decision is signed and chained, none is missing", "security",
        ("readiness", "incident", "security"), "restore audit/ from a backup; ask who had access", audit_proved,
        waivable=False,
    ),
    Check(
        "signed-logs", "marks, feeds, policies, waivers and incidents verify", "security",
        ("readiness", "incident", "security"), "restore the log that is named from a backup", logs_hold,
        waivable=False,
    ),
    Check(
        "release-head", "the head of the releases verifies and is signed every day", "release",
        ("readiness", "incident", "security"), "`plinth up` signs it daily, `plinth release mirror` once", head_fresh,
    ),
    Check(
        "seals", "every published asset was published by a worker of this workspace", "security", ("security",),
        "run the pipeline again; assets of before there was a root: `plinth keys adopt`", sealed,
    ),
)  # fmt: skip
