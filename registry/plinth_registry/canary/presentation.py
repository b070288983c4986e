"""A trial as the contents of its page."""

from __future__ import annotations

from plinth.report.trial_figure import TrialStream
from plinth.report.trial_page import FeedRow, TrialData
from plinth_registry.canary.judgement import PairedStream, StreamTrial, evidence_curve
from plinth_registry.canary.observation import FeedCount, Observed
from plinth_registry.gates import TrialPolicy


def shown(found: Observed) -> TrialData:
    """The streams with their curves, in shares of the champion's mean where it has one."""
    status, rules = found.status, found.policy
    pairs = zip(found.streams, status.trial.streams, strict=True)
    return TrialData(
        release=status.release,
        canary=status.canary,
        champion=status.champion or "none",
        since=status.since,
        decision=status.trial.decision,
        next=status.next,
        margin=rules.margin,
        level=rules.level,
        policy=status.policy,
        streams=tuple(_stream(rules, stream, judged) for stream, judged in pairs),
        small=status.small,
        missing=status.missing,
        feeds=tuple(_feed(name, one) for name, one in status.feeds.items()),
        manifests=tuple(status.manifests.items()),
    )


def _feed(name: str, one: FeedCount) -> FeedRow:
    rejects = tuple(one.rejects.items())
    return FeedRow(name=name, pairs=one.pairs, earlier=one.earlier, rejects=rejects, fault=one.fault)


def _stream(rules: TrialPolicy, stream: PairedStream, judged: StreamTrial) -> TrialStream:
    by = abs(judged.champion or 0.0)
    scale = 100 / by if by else 1.0
    points = evidence_curve(rules, stream, judged.decided_at)
    return TrialStream(
        name=judged.name,
        role=judged.role,
        decision=judged.decision,
        finding=judged.sentence,
        unit="%" if by else "",
        margin=100 * rules.margin if by else 0.0,
        points=tuple((one.pairs, scale * one.value, scale * one.low, scale * one.high) for one in points),
        decided_at=judged.decided_at,
    )
