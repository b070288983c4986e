"""One look at the standing canary, and what follows from it: it is given back, or may become champion.

A look can be repeated: the record of a return is the decision, and what was taken in before a crash is kept. The return
names the version that was judged, so that a canary which came since is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.report.trial_page import FeedRow, TrialData, TrialStream, page
from plinth.storage.atomic import write_bytes
from plinth_registry import promotion, timeline
from plinth_registry.canary.judgement import PairedStream, StreamTrial, evidence_curve
from plinth_registry.canary.observation import CanaryStatus, FeedCount, Observed, observe
from plinth_registry.gates import TrialPolicy
from plinth_registry.history import ReleaseRecord
from plinth_registry.registration import describe

#: Characters of a tag in MLflow.
LONGEST_TAG = 4900


class CanaryTick(NamedTuple):
    """What was seen of a canary and what was done: `returned` is the record of its return; `due` says that the policy
    lets it become champion without a person. `data` are the contents of its page."""

    status: CanaryStatus
    data: TrialData
    page: Path
    returned: ReleaseRecord | None
    due: bool


def tick(ctx: Context, client: Any, recipe: Recipe, by: str) -> CanaryTick | None:
    """Take in what the owner's metrics say, judge the canary, give it back if it is worse, and show what was seen.

    Raises:
        GateError: no policy is signed.
        SignatureError: the history or the policy does not hold, or the promoter's key is not usable.
    """
    found = observe(ctx, recipe, take=True)
    if found is None:
        return None
    status, data = found.status, shown(found)
    path, content = ctx.workspace.reports / page_name(status), page(data).encode()
    fresh = not path.exists() or path.read_bytes() != content
    write_bytes(path, content)
    returned = None
    if status.trial.decision == "return":
        reason = f"worse than champion {status.champion}: {status.trial.reason}"
        returned = promotion.return_canary(ctx, client, recipe, by=by, reason=reason, version=status.canary)
    if fresh:
        _show(client, recipe, status, path)
    automatic = found.policy.promote == "automatic"
    return CanaryTick(status, data, path, returned, automatic and status.trial.decision == "promote")


def page_name(status: CanaryStatus) -> str:
    """The file of the page of one trial: the canary's version and the champion that it is compared with."""
    against = f"-champion-{status.champion}" if status.champion else ""
    return f"{status.release}-canary-{status.canary}{against}.html"


def _show(client: Any, recipe: Recipe, status: CanaryStatus, path: Path) -> None:
    """The state of the trial on the canary's version in MLflow, and the page among the artifacts of its run."""
    tags = {"trial": f"{status.next}. {status.trial.reason}"[:LONGEST_TAG], "trial.page": path.name}
    held = client.get_model_version(status.release, status.canary)
    for key, value in tags.items():
        client.set_model_version_tag(status.release, status.canary, key, value)
    describe(client, held, {**held.tags, **tags})
    if run := held.tags.get("run"):
        timeline.keep(client, recipe.name, run, [path])


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
