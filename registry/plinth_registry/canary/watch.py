"""Observations of the canary against the champion, and the actions that follow from one check.

A check can be repeated, because the decision is stored only as the record of the withdrawal, and observations from
before a crash are kept. The withdrawal names the version that was judged, so it never affects a newer canary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.comparison import pairs
from plinth.evaluation.comparison.job import ASSET as COMPARISON
from plinth.evaluation.comparison.job import FILE
from plinth.evaluation.comparison.pairs import ROWS, Pairs, largest_slices
from plinth.evaluation.measurement import UNREADABLE
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.parts import read_table
from plinth_registry import attestations, policy, promotion, releases, run_metrics
from plinth_registry.canary import (
    CanaryStatus,
    FeedCount,
    PairedStream,
    StreamTrial,
    evidence_curve,
    feeds,
    judge,
)
from plinth_registry.canary.feeds import FeedState, Journal
from plinth_registry.canary.page import TrialStream, trial_page
from plinth_registry.gates.settings import TrialPolicy
from plinth_registry.registration import describe
from plinth_registry.releases import Action, ReleaseRecord

#: Release changes after which a version is champion.
CHAMPION_BY: Final[tuple[Action, ...]] = ("champion", "rollback")


class Observed(NamedTuple):
    """Streams of a canary trial, with the trial's status and policy."""

    status: CanaryStatus
    policy: TrialPolicy
    streams: tuple[PairedStream, ...]


def observe(ctx: Context, recipe: Recipe, *, take: bool = False) -> Observed | None:
    """Return the state of a release's canary trial, or None if there is no canary.

    Args:
        take: True to read and store new values of the owner's metrics. By default, only stored values are used.

    Raises:
        GateError: no policy is signed, so the margins are unknown.
        SignatureError: the history or the policy does not verify.
    """
    name = recipe.required_release().name
    records = releases.history(ctx, name)
    held = records.standing
    if held.canary is None:
        return None
    governing = policy.current(ctx, name)
    ours, theirs = _newest(records, held.canary, ("canary",)), _newest(records, held.champion, CHAMPION_BY)
    assert ours is not None  # every canary has a record
    rules = governing.policy.trial
    since = max(one.at for one in (ours, theirs) if one is not None)
    found, known = MeasuredPairs(missing="there is no champion"), Journal()
    if theirs is not None:
        found = measured_pairs(ctx, ours.candidate["checkpoint"], theirs.candidate["checkpoint"], rules.least)
        path = feeds.journal_path(ctx, name, ours.number, str(theirs.version))
        began = datetime.fromisoformat(since)
        known = feeds.take_all(path, ctx.workspace.root, rules.feeds, began) if take else feeds.load_journal(path)
    streams = (*found.streams, *_streams_observation(rules, known))
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


def _streams_observation(rules: TrialPolicy, known: Journal) -> Iterator[PairedStream]:
    """Yield a stream for each of the owner's metrics, sorted by name. A metric without observations is undecided."""
    for place, name in enumerate(sorted(rules.feeds), start=1):
        pairs = known.feeds.get(name, FeedState()).pairs
        values = [(canary, champion) for _, canary, champion in pairs]
        yield PairedStream(name, values, place=2 * place, role="metric")


def _counted(state: FeedState) -> FeedCount:
    return FeedCount(pairs=len(state.pairs), earlier=state.earlier, rejects=state.rejects, fault=state.fault)


def _newest(
    records: tuple[ReleaseRecord, ...], version: str | None, actions: tuple[Action, ...]
) -> ReleaseRecord | None:
    """Return the newest release record that gave a version its current alias by one of these actions."""
    for record in reversed(records):
        if record.version == version and record.action in actions:
            return record
    return None


#: Maximum length of an MLflow tag.
LONGEST_TAG = 4900


class CanaryTick(NamedTuple):
    """Observations and actions of one check of the canary. `returned` is the record of the rollback, if the canary was
    rolled back. `due` is True if the canary can be promoted now without a person. `streams` are the curves on the
    trial's page."""

    status: CanaryStatus
    streams: tuple[TrialStream, ...]
    page: Path
    returned: ReleaseRecord | None
    due: bool


def tick(ctx: Context, client: Any, recipe: Recipe, by: str) -> CanaryTick | None:
    """Read new metrics, compare the canary with the champion, and publish the state. If the canary is worse, roll it
    back.

    Raises:
        GateError: no policy is signed.
        SignatureError: the history or the policy does not verify, or the promoter's key is not usable.
    """
    found = observe(ctx, recipe, take=True)
    if found is None:
        return None
    status, rules = found.status, found.policy
    judged = zip(found.streams, status.trial.streams, strict=True)
    streams = tuple(_stream(rules, stream, result) for stream, result in judged)
    path, content = ctx.workspace.reports / page_name(status), trial_page(status, rules, streams).encode()
    fresh = not path.exists() or path.read_bytes() != content
    write_bytes(path, content)
    returned = None
    if status.trial.decision == "return":
        reason = f"worse than champion {status.champion}: {status.trial.reason}"
        returned = promotion.return_canary(ctx, client, recipe, by=by, reason=reason, version=status.canary)
    if fresh:
        _show(client, recipe, status, path)
    automatic = rules.promote == "automatic"
    return CanaryTick(status, streams, path, returned, automatic and status.trial.decision == "promote")


def page_name(status: CanaryStatus) -> str:
    """Return the file name of a trial's page, with the versions of canary and champion."""
    against = f"-champion-{status.champion}" if status.champion else ""
    return f"{status.release}-canary-{status.canary}{against}.html"


def _show(client: Any, recipe: Recipe, status: CanaryStatus, path: Path) -> None:
    """Show the state of the trial on the canary's version in MLflow, and store the trial's page with the artifacts of
    the canary's run."""
    tags = {"trial": f"{status.next}. {status.trial.reason}"[:LONGEST_TAG], "trial.page": path.name}
    held = client.get_model_version(status.release, status.canary)
    for key, value in tags.items():
        client.set_model_version_tag(status.release, status.canary, key, value)
    describe(client, held, {**held.tags, **tags})
    if run := held.tags.get("run"):
        run_metrics.keep(client, recipe.name, run, [path])


def _stream(rules: TrialPolicy, stream: PairedStream, judged: StreamTrial) -> TrialStream:
    """Return a stream with its curve, in percent of the champion's mean if the champion has values."""
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


# Values of canary and champion on held-out text and probes, from signed evidence.
#
# If the canary has a comparison with this champion, that is used; otherwise the measurements of both models are paired.
# Each document or probe template is one pair: bits per byte for a document, mean score for a template. Pairs are
# ordered by the SHA-256 of their names, which is independent of bucket, length and observer. Promotion requires
# held-out text as a whole; its slices and the probes are guards. If signed evidence is replaced during a trial, its
# streams restart.

KINDS: Final = ("slices", "probes")
WHOLE: Final = "held-out text"
#: Maximum number of slices per axis, largest first.
MOST_SLICES = 8


class MeasuredPairs(NamedTuple):
    """Streams from signed evidence. `small` lists the streams with too few pairs. `missing` is the reason if there are
    no streams. `manifests` has the digests of the manifests that were read, by asset. Names of the champion's assets
    have the prefix `champion `."""

    streams: tuple[PairedStream, ...] = ()
    small: tuple[str, ...] = ()
    missing: str = ""
    manifests: Mapping[str, str] = {}


def measured_pairs(ctx: Context, canary: str, champion: str, least: int) -> MeasuredPairs:
    """Return the evaluator's measurements of both checkpoints as pairs.

    Args:
        canary, champion: digests of checkpoints.
        least: minimum number of pairs. Streams with fewer pairs are listed but not judged.

    Raises:
        SignatureError: no root of trust is pinned.
    """
    ours, theirs = (
        attestations.measurements_of(ctx, one, attestations.about(ctx, one).valid) for one in (canary, champion)
    )
    try:
        pairs, manifests = _read(ctx, ours, theirs, champion)
        found = _streams_measured_pairs(pairs)
    except (PlinthError, *UNREADABLE) as error:
        return MeasuredPairs(missing=f"signed measurements cannot be paired: {error}")
    judged = [one for one in found if len(one.values) >= least]
    streams = tuple(one._replace(place=2 * place - 1) for place, one in enumerate(judged, start=1))
    small = tuple(f"{one.name} ({len(one.values)})" for one in found if len(one.values) < least)
    missing = "" if streams else f"fewer than {least} paired documents or templates"
    return MeasuredPairs(streams, small, missing, manifests)


def _read(
    ctx: Context, ours: Mapping[str, Manifest], theirs: Mapping[str, Manifest], champion: str
) -> tuple[Iterator[Pairs], dict[str, str]]:
    made = ours.get(COMPARISON)
    if made is not None and made.stats["models"].get("b", {}).get("checkpoint") == champion:
        return _compared(ctx, made), {COMPARISON: made.digest}
    both = sorted(set(ours) & set(theirs) & {"evaluation", "probes"})
    digests = {name: ours[name].digest for name in both} | {f"champion {name}": theirs[name].digest for name in both}
    return pairs.read(ctx.store, {name: ours[name] for name in both}, theirs), digests


def _compared(ctx: Context, made: Manifest) -> Iterator[Pairs]:
    """Yield the pairs of a stored comparison. The comparison's lines state if lower values are better."""
    (part,) = made.named(FILE)
    rows = read_table(ctx.store, part)
    fewer = {(line["kind"], line["measure"]): bool(line["fewer_is_better"]) for line in made.stats["lines"]}
    for (kind, measure), better in sorted(fewer.items()):
        own = rows.filter(pc.and_(pc.equal(rows["kind"], kind), pc.equal(rows["measure"], measure)))
        yield Pairs(kind, measure, own.select(ROWS.names), fewer_is_better=better, ratio=True)


def _streams_measured_pairs(pairs: Iterable[Pairs]) -> list[PairedStream]:
    """Return the stream of all held-out text, followed by the streams of its slices and of probes, sorted by name."""
    found: list[tuple[int, PairedStream]] = []
    for one in pairs:
        if one.kind not in KINDS or not one.rows.num_rows:
            continue
        whole = one.kind == "slices"
        if not whole:
            more = not one.fewer_is_better
            name = f"probe {one.measure}"
            found.append((2, PairedStream(name, _values(one.rows), role="guard", higher_is_better=more)))
            continue
        found.append((0, PairedStream(WHOLE, _values(one.rows))))
        for label, rows in largest_slices(one, MOST_SLICES)[0].items():
            found.append((1, PairedStream(f"{WHOLE}: {label}", _values(one.rows, rows), role="guard")))
    return [one for _, one in sorted(found, key=lambda each: (each[0], each[1].name))]


def _values(rows: pa.Table, taken: NDArray[np.int64] | None = None) -> list[tuple[float, float]]:
    """Return the weighted means of canary and champion for each cluster. Clusters are sorted by the digest of their
    names."""
    own = rows if taken is None else rows.take(pa.array(taken))
    sums = own.group_by("cluster").aggregate([(name, "sum") for name in ("a", "b", "weight")])
    names: list[str] = sums["cluster"].to_pylist()
    order = sorted(range(len(names)), key=lambda at: hashlib.sha256(names[at].encode()).digest())
    a, b, weight = (sums[f"{name}_sum"].to_numpy()[order] for name in ("a", "b", "weight"))
    return list(zip((a / weight).tolist(), (b / weight).tolist(), strict=True))
