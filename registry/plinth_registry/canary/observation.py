"""The canary that stands, what was observed of it beside the champion, and what decides next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth_registry import policy, releases
from plinth_registry.canary import journal
from plinth_registry.canary.feeds import FeedState
from plinth_registry.canary.journal import Journal
from plinth_registry.canary.judgement import PairedStream, Trial, judge
from plinth_registry.canary.measured_pairs import MeasuredPairs, measured_pairs
from plinth_registry.gates import TrialPolicy
from plinth_registry.history import Action, ReleaseRecord

#: Movements after which a version is champion.
CHAMPION_BY: Final[tuple[Action, ...]] = ("champion", "rollback")


class FeedCount(Frozen):
    """What was taken in of one of the owner's metrics: pairs, lines from before the trial, rejects by reason; `fault`
    is why nothing more could be."""

    pairs: int
    earlier: int
    rejects: Mapping[str, int]
    fault: str


class CanaryStatus(Frozen):
    """A canary with everything observed of it, judged now.

    `number` is that of the release record that put it on trial, `since` when its comparison with this champion began
    (UTC). `small` are streams with too few pairs to be judged; `missing` says why nothing signed could be paired.
    """

    release: str
    canary: str
    champion: str | None
    candidate_version: str | None
    number: int
    since: str
    policy: str
    trial: Trial
    small: tuple[str, ...] = ()
    missing: str = ""
    manifests: Mapping[str, str] = {}
    feeds: Mapping[str, FeedCount] = {}

    @property
    def next(self) -> str:
        """What decides next, for people."""
        if self.champion is None:
            return "there is no champion to compare with: a person promotes it, or gives it back"
        if self.trial.decision == "return":
            return "it is given back"
        if self.trial.decision == "promote":
            promote = f"`plinth release promote {self.candidate_version} --by PERSON --reason TEXT`"
            return f"it may become champion: {promote} judges its gates again"
        open_ = [one.name for one in self.trial.streams if one.role != "guard" and one.decision == "continue"]
        waits = f"undecided: {', '.join(open_)}" if open_ else f"nothing signed decides: {self.missing}"
        return f"{waits}; any stream that is worse than the margin gives it back"


class Observed(NamedTuple):
    """The streams of a trial and its status."""

    status: CanaryStatus
    policy: TrialPolicy
    streams: tuple[PairedStream, ...]


def observe(ctx: Context, recipe: Recipe, *, take: bool = False) -> Observed | None:
    """The standing canary of a release, judged by what is known of it now; None where there is none.

    Args:
        take: also take in what the owner's metrics say now, and keep it; else what was kept counts.

    Raises:
        GateError: no policy is signed, which would say what counts as worse.
        SignatureError: the history or the policy does not hold.
    """
    name = recipe.required_release().name
    records = releases.history(ctx, name)
    held = records.standing
    if held.canary is None:
        return None
    governing = policy.current(ctx, name)
    ours, theirs = _newest(records, held.canary, ("canary",)), _newest(records, held.champion, CHAMPION_BY)
    assert ours is not None  # a canary stands because a record put it there
    rules = governing.policy.trial
    since = max(one.at for one in (ours, theirs) if one is not None)
    found, known = MeasuredPairs(missing="there is no champion"), Journal()
    if theirs is not None:
        found = measured_pairs(ctx, ours.candidate["checkpoint"], theirs.candidate["checkpoint"], rules.least)
        path = journal.path_of(ctx, name, ours.number, str(theirs.version))
        began = datetime.fromisoformat(since)
        known = journal.take(path, ctx.workspace.root, rules.feeds, began) if take else journal.load(path)
    streams = (*found.streams, *_streams(rules, known))
    status = CanaryStatus(
        release=name,
        canary=held.canary,
        champion=held.champion,
        candidate_version=ours.candidate_version,
        number=ours.number,
        since=since,
        policy=governing.digest,
        trial=judge(rules, streams),
        small=found.small,
        missing=found.missing,
        manifests=found.manifests,
        feeds={name: _counted(known.feeds.get(name, FeedState())) for name in sorted(rules.feeds)},
    )
    return Observed(status, rules, streams)


def _streams(rules: TrialPolicy, known: Journal) -> Iterator[PairedStream]:
    """The owner's metrics, by name; one that has said nothing yet still has to."""
    for place, name in enumerate(sorted(rules.feeds), start=1):
        pairs = known.feeds.get(name, FeedState()).pairs
        values = [(canary, champion) for _, canary, champion in pairs]
        yield PairedStream(name, values, place=2 * place, role="metric")


def _counted(state: FeedState) -> FeedCount:
    return FeedCount(pairs=len(state.pairs), earlier=state.earlier, rejects=state.rejects, fault=state.fault)


def _newest(
    records: tuple[ReleaseRecord, ...], version: str | None, actions: tuple[Action, ...]
) -> ReleaseRecord | None:
    """The record that put a version where it is."""
    for record in reversed(records):
        if record.version == version and record.action in actions:
            return record
    return None
