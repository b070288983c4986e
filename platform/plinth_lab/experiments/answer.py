"""Result of an experiment: effects of its arms from the manifests of its runs, its page, and the arms to stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import RequestError
from plinth.records import Manifest, Step
from plinth.training import manifests
from plinth_lab.experiments import page as pages
from plinth_lab.experiments import pipeline
from plinth_lab.experiments.arms import PREFIX, Arm, Experiment, SweepOptimum, optima
from plinth_lab.experiments.effects import FINISHED, ArmScores, Effect, effects, stopping
from plinth_lab.experiments.measure import NoiseScale, common_scores, configuration
from plinth_lab.mixture import PROPOSED, ConfirmationOutcome, ConfirmationQuestion, Swarm, confirmed, proposals
from plinth_lab.mixture.proposals import MixtureProposal, propose
from plinth_lab.scaling.ladder import LadderForecast, LadderOutcome, forecast, outcomes
from plinth_lab.source_value import question
from plinth_lab.source_value.question import BUCKET, PRICE, WITH, WITHOUT
from plinth_lab.source_value.verdict import MeasuredPair, SourceVerdict, changes, verdict

VERSION = "2"
FORECAST_VERSION = "2"
SAMPLE_VERSION = "1"
MEASURE = "bits per byte"
#: Keys of the experiment file that change the answer but not the runs, such as price or floor.
ASKED = ("sweep", "swarm", "source", "confirms")


def forecast_of(experiment: Experiment, arms: Sequence[Arm], made: Mapping[str, Manifest]) -> Manifest:
    """Return the manifest of the forecast for a scaling ladder. Its stats are a `LadderForecast`.

    Args:
        made: manifests of the runs that the scaling law is fitted to, by asset.
    """
    assert experiment.ladder is not None
    found = forecast(arms, made, experiment.ladder.held_out)
    step = Step(name="experiment/forecast", version=FORECAST_VERSION, params=experiment.ladder.model_dump())
    stats = found.model_dump(mode="json")
    return context.manifest(f"{PREFIX}/{experiment.name}/forecast", step, made, [], stats)


def sample_of(experiment: Experiment, arms: Sequence[Arm], found: Mapping[str, Any]) -> Manifest:
    """Return the manifest that describes a sample of a source's text.

    Stats: `found` (result of `assessment.assess`), `needs` by size, `refusal`.

    Raises:
        RequestError: the source cannot be evaluated (`question.require_meaning`).
    """
    assert experiment.source is not None
    needs, least_rate = {}, 0.0
    for one in (one for one in arms if one.arm == WITH and one.recipe.mixture is not None):
        mixture = one.recipe.required_mixture()
        epochs = mixture.epoch_caps.get(BUCKET, mixture.max_epochs)
        least_rate = max(least_rate, one.recipe.tokenizer.min_bytes_per_token)
        needs[one.size] = question.needed(experiment.source.share_of(one.size), one.tokens, epochs)
    question.require_meaning(found, needs)
    asked = experiment.source.model_dump(mode="json", exclude=PRICE)  # the price does not change the sample
    step = Step(name="experiment/sample", version=SAMPLE_VERSION, params=asked)
    stats = {**found, "needs": needs, "refusal": question.refusal(found, needs, least_rate)}
    return context.manifest(f"{PREFIX}/{experiment.name}/sample", step, {}, [], stats)


def of(
    ctx: Context,
    experiment: Experiment,
    arms: Sequence[Arm],
    runs: Sequence[Manifest],
    foretold: Manifest | None = None,
    sample: Manifest | None = None,
) -> Manifest:
    """Return the manifest of an experiment's effects.

    Stats:
        `effects`: records of `Effect`; `runs`: number of runs by final status; `tokens`, `flops`: totals over all runs.
        `unsure`: number of test documents that are left out, because some run may have trained on them.
        `outcomes` (ladder): records of `LadderOutcome`. `optima` (sweep): records of `SweepOptimum`.
        `proposal` (swarm): `mixture.proposals.MixtureProposal`.
        `confirmation` (confirmation of a proposal): `mixture.ConfirmationOutcome`.
        `value` (source): `source_value.verdict.SourceVerdict`.

    Raises:
        IntegrityError: runs were scored on different text.
    """
    scores = common_scores(ctx, runs)
    ended = [one.status for one in scores]
    stats: dict[str, Any] = {
        "effects": [one.model_dump(mode="json") for one in effects(scores, experiment.base, measure=MEASURE)],
        "runs": {status: ended.count(status) for status in sorted(set(ended))},
        "tokens": sum(one.tokens for one in scores),
        "flops": sum(one.flops for one in scores),
        "unsure": len({document for one in runs for document in one.stats.get("unsure", ())}),
    }
    if experiment.sweep is not None:
        stats["optima"] = [one.model_dump(mode="json") for one in optima(experiment.sweep, scores)]
    made = {one.asset: one for one in runs}
    if foretold is not None:
        truths = outcomes(LadderForecast.model_validate(foretold.stats), arms, made)
        stats["outcomes"] = [one.model_dump(mode="json") for one in truths]
        made[foretold.asset] = foretold
    params: dict[str, Any] = {"base": experiment.base}
    if experiment.swarm is not None:
        params["swarm"] = experiment.swarm.model_dump(mode="json")
        stats["proposal"] = _proposal(ctx, experiment, experiment.swarm, runs, scores).model_dump(mode="json")
    if experiment.confirms is not None:
        params["confirms"] = experiment.confirms.model_dump(mode="json")
        size = list(experiment.sizes)[-1]
        trained = _trained(ctx, size, runs, scores, experiment.confirms)
        found = [Effect.model_validate(one) for one in stats["effects"]]
        stats["confirmation"] = confirmed(experiment.confirms, found, size, trained).model_dump(mode="json")
    if experiment.source is not None and sample is not None:
        made[sample.asset], params["source"] = sample, experiment.source.model_dump(mode="json")
        measured, unmeasured = changes(ctx.store, _measured_pairs(ctx, arms, runs))
        stats["value"] = verdict(
            experiment.source, list(experiment.sizes), sample.stats, scores, measured, unmeasured
        ).model_dump(mode="json")
    step = Step(name="experiment/effects", version=VERSION, params=params)
    return context.manifest(f"{PREFIX}/{experiment.name}/effects", step, made, [], stats)


def published(ctx: Context) -> list[dict[str, Any]]:
    """Return the name, the digest of the effects and the statistics of every experiment with results, by name."""
    refs = (ref for ref in ctx.refs.all(PREFIX) if ref.asset.endswith("/effects") and ref.asset.count("/") == 2)
    return [
        {"name": ref.asset.split("/")[1], "digest": ref.digest, **ctx.refs.load(ref.digest).stats} for ref in refs
    ]


def _measured_pairs(ctx: Context, arms: Sequence[Arm], runs: Sequence[Manifest]) -> list[MeasuredPair]:
    """Return the measurements of both arms (with and without the source) for each size and seed that both finished."""
    ended = {
        (arm.arm, arm.size, arm.seed): {name: ctx.refs.load(digest) for name, digest in run.inputs.items()}
        for arm, run in zip(arms, runs, strict=True)
        if run.stats["status"] == FINISHED
    }
    return [
        MeasuredPair(size, seed, own, ended[WITHOUT, size, seed])
        for (arm, size, seed), own in ended.items()
        if arm == WITH and (WITHOUT, size, seed) in ended
    ]


def _proposal(
    ctx: Context, experiment: Experiment, swarm: Swarm, runs: Sequence[Manifest], scores: Sequence[ArmScores]
) -> MixtureProposal:
    """Return the mixture that a swarm proposes.

    It is computed from the runs of the largest size: from their scores and the shares of text that they trained on.
    """
    size, seen, caps = list(experiment.sizes)[-1], [], dict[str, float]()
    for run, score in zip(runs, scores, strict=True):
        if score.trouble or score.size != size:
            continue
        mixture = _mixture(ctx, run)
        seen.append((_shares(mixture, list(swarm.prior)), float(score.bits.sum() / score.bytes.sum())))
        target = swarm.target_tokens or mixture["tokens"]
        for name, stream in mixture["buckets"].items():
            allowed = stream["max_epochs"] * stream["sequences"] * mixture["sequence_tokens"] / target
            caps[name] = max(allowed, caps.get(name, 0.0))
    return propose(swarm, seen, caps)


def _mixture(ctx: Context, run: Manifest) -> Mapping[str, Any]:
    """Return the statistics of the mixture that a finished run was trained on."""
    return ctx.refs.load(ctx.refs.load(run.inputs["run"]).inputs["mixture"]).stats


def _trained(
    ctx: Context, size: str, runs: Sequence[Manifest], scores: Sequence[ArmScores], question: ConfirmationQuestion
) -> dict[str, float]:
    """Return the mixture shares of the proposed arm's first finished run, or an empty mapping if no run finished."""
    for run, one in zip(runs, scores, strict=True):
        if (one.arm, one.size) == (PROPOSED, size) and not one.trouble:
            return _shares(_mixture(ctx, run), list(question.prior))
    return {}


def confirmation_of(ctx: Context, experiment: Experiment, made: Manifest) -> ConfirmationOutcome | None:
    """Return the outcome of the runs that confirm a swarm's proposal, or None if there are no such runs.

    Args:
        made: manifest of the swarm experiment's effects.
    """
    proposal = MixtureProposal.model_validate(made.stats["proposal"]) if "proposal" in made.stats else None
    if proposal is None or proposal.refusal:
        return None
    found = ctx.refs.published(f"{PREFIX}/{proposals.name_of(experiment.name)}/effects")
    asked = proposals.question(experiment, proposal, made.digest)
    if found is None or found.params.get("confirms") != asked.model_dump(mode="json"):
        return None
    return ConfirmationOutcome.model_validate(found.stats["confirmation"])


def _shares(mixture: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the share of each stream in the training data of a run.

    Raises:
        RequestError: the run has a stream that the prior does not name.
    """
    counts = dict.fromkeys(names, 0)
    for phase in mixture["phases"]:
        for name, count in phase["counts"].items():
            if name not in counts:
                raise RequestError(
                    f"the swarm's prior has no stream {name}",
                    found=", ".join(names),
                    expected="a weight for each stream by name",
                )
            counts[name] += count
    whole = sum(counts.values())
    return {name: count / whole for name, count in counts.items()}


def cannot_win(experiment: Experiment, arm: Arm, scores: Sequence[ArmScores]) -> str:
    """Return the reason why no more seeds of an arm should start, or an empty string if the arm can still win.

    Args:
        scores: scores of the runs with earlier seeds.
    """
    decided = stopping(scores, experiment.base, experiment.seeds)
    return next((one.reason for one in decided if one.stop and (one.arm, one.size) == (arm.arm, arm.size)), "")


def page(ctx: Context, experiment: Experiment, arms: Sequence[Arm], made: Manifest) -> str:
    """Return the results page of an experiment, as HTML."""
    runs = [ctx.refs.load(made.inputs[one.asset]) for one in arms]
    scores = common_scores(ctx, runs)
    scores = [replace(one, seconds=_seconds(ctx, run)) for one, run in zip(scores, runs, strict=True)]
    spent = pipeline.spent_by_asset(ctx.workspace, arms)
    shared = {arm: {"made": 0, "reused": 0} for arm in experiment.arms}
    for one in arms:
        if found := spent.get(one.asset):
            shared[one.arm]["made"] += found.parts
            shared[one.arm]["reused"] += found.spared
    return pages.page(
        experiment.name,
        experiment.question,
        MEASURE,
        experiment.base,
        {name: next(one.overlay for one in arms if one.arm == name) for name in experiment.arms},
        scores,
        [Effect.model_validate(one) for one in made.stats["effects"]],
        stopping(scores, experiment.base, experiment.seeds) if experiment.stop_losing else (),
        shared,
        tuple(_notes(experiment, spent, made)),
        _ladder(ctx, experiment, made),
        [SweepOptimum.model_validate(one) for one in made.stats.get("optima", ())],
        {one.asset: NoiseScale.model_validate(run.stats["noise"]) for one, run in zip(arms, runs, strict=True)
         if run.stats.get("noise")},
        MixtureProposal.model_validate(made.stats["proposal"]) if "proposal" in made.stats else None,
        _value(ctx, experiment, made),
        _confirmation(ctx, experiment, made),
    )  # fmt: skip


def _confirmation(ctx: Context, experiment: Experiment, made: Manifest) -> ConfirmationOutcome | None:
    """Return the outcome of a mixture's confirmation runs, or None if the experiment has no proposal to confirm."""
    if experiment.confirms is not None:
        return ConfirmationOutcome.model_validate(made.stats["confirmation"])
    return confirmation_of(ctx, experiment, made) if experiment.swarm else None


def _value(ctx: Context, experiment: Experiment, made: Manifest) -> tuple[SourceVerdict, Mapping[str, Any]] | None:
    """Return the verdict on a source and the results of its sample, or None if the experiment evaluates no source."""
    if experiment.source is None:
        return None
    sample = ctx.refs.load(made.inputs[f"{PREFIX}/{experiment.name}/sample"])
    return SourceVerdict.model_validate(made.stats["value"]), sample.stats


def _ladder(ctx: Context, experiment: Experiment, made: Manifest) -> tuple[LadderForecast, list[LadderOutcome]] | None:
    if experiment.ladder is None:
        return None
    foretold = ctx.refs.load(made.inputs[f"{PREFIX}/{experiment.name}/forecast"])
    truths = [LadderOutcome.model_validate(one) for one in made.stats["outcomes"]]
    return LadderForecast.model_validate(foretold.stats), truths


def _notes(experiment: Experiment, spent: dict[str, pipeline.Spent], made: Manifest) -> Iterator[str]:
    assets = [(len(one.made), len(one.taken), one.written) for one in spent.values()]
    new, taken, written = (sum(column) for column in zip(*assets, strict=True)) if assets else (0, 0, 0)
    yield f"{taken:,} of {new + taken:,} assets of the runs were reused; {written:,} files were written."
    if unsure := made.stats["unsure"]:
        yield f"{unsure:,} test documents are excluded, because some run may have trained on them."
    for name, most in experiment.budget:
        if most is not None:
            yield f"Budget used: {made.stats[name]:,.4g} of {most:,.4g} {name}."


def _seconds(ctx: Context, run: Manifest) -> float:
    """Return the rank-seconds of a run's steps from its timeline, or 0 if the timeline is not on this machine."""
    if "run" not in run.inputs:
        return 0.0
    prepared = configuration(ctx, ctx.refs.load(run.inputs["run"]))
    return float(manifests.facts(ctx, prepared).get("training_s", 0.0)) * prepared.ranks if prepared else 0.0
