"""Assets of an experiment: `experiment/{name}/{arm}/{size}-s{seed}` for each run, and `experiment/{name}/effects`.

An experiment with a ladder also has `experiment/{name}/forecast`, created before the size that it predicts is trained.
An experiment on a source also has `experiment/{name}/sample`, created before anything is trained.

A run's asset executes the pipeline of the run's recipe (`pipeline.played`) up to the checkpoint. If the run fails, the
failure is a result, and the asset records the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.load import fingerprint as recipe_fingerprint
from plinth.records import Manifest
from plinth.storage.atomic import write_bytes
from plinth_assets.annotate import annotator_parameters
from plinth_assets.catalog import selected, stages
from plinth_assets.framework import Inputs, Say, Stage, shared_owner
from plinth_assets.framework.present import markdown, page_value, table
from plinth_assets.initial import require_checkpoint
from plinth_lab.experiments import answer, measure
from plinth_lab.experiments.arms import PREFIX, Arm, Experiment
from plinth_lab.experiments.pipeline import CORPUS, NOT_OF_THE_ARM, OF_THE_ARM, Known, last_assets, played, read_outside
from plinth_lab.source_value.question import BUCKET, PRICE, WITH

#: Reason in runs that are not trained because the sample of the source already decides.
ANSWERED = "the sample has the answer"


def of(
    experiment: Experiment,
    arms: Sequence[Arm],
    failed: Mapping[str, PlinthError] | None = None,
    for_one_decision: bool = False,
) -> list[Stage]:
    """Return the stages of an experiment: the stages of every run, then the stage of the effects.

    If losing arms are stopped, the runs of a seed read the runs of earlier seeds.

    Args:
        failed: failures of runs that were just executed, so that these runs are not executed again.
        for_one_decision: True to read a source only once if several runs share it. Do not use this option for stages to
            be materialized, because a source may change while runs are in progress.
    """
    how = failed or {}
    known: Known | None = [] if for_one_decision else None
    first = sorted(arms, key=lambda one: (experiment.seeds.index(one.seed), one.arm != experiment.base))
    runs = [
        _run(experiment, arm, _before(experiment, arms, arm), len(arms) - first.index(arm), how.get(arm.asset), known)
        for arm in arms
    ]
    if not experiment.ladder:
        return [*_sample(experiment, arms, known), *runs, _effects(experiment, arms)]
    held = [one for one, arm in zip(runs, arms, strict=True) if _foretold(experiment, arm)]
    return [*(one for one in runs if one not in held), _forecast(experiment, arms), *held, _effects(experiment, arms)]


def _before(experiment: Experiment, arms: Sequence[Arm], arm: Arm) -> tuple[Arm, ...]:
    """Return the runs with earlier seeds at the same size. Their scores decide if this run starts."""
    if not experiment.stop_losing:
        return ()
    seeds = experiment.seeds[: experiment.seeds.index(arm.seed)]
    return tuple(one for one in arms if one.seed in seeds and one.size == arm.size)


def _run(
    experiment: Experiment,
    arm: Arm,
    before: Sequence[Arm],
    priority: int,
    failed: PlinthError | None,
    known: Known | None,
) -> Stage:
    """Return the stage of a run. For each seed, the base arm runs first, so that other arms can reuse its results."""
    own = selected(stages(arm.recipe), last_assets(experiment, arm))
    return Stage(
        asset=arm.asset,
        deps=(*(one.asset for one in before), *_foretold(experiment, arm), *_sampled(experiment)),
        make=partial(_make, experiment, arm, before, failed),
        version=measure.VERSION,
        params={"recipe": recipe_fingerprint(arm.recipe), "points": experiment.curve_points,
                "stages": {one.asset: one.code_version for one in own}},
        outside=partial(read_outside, arm, own, known),
        group=PREFIX,
        description=f"{experiment.question} This asset is a run: arm {arm.arm}, size {arm.size}, seed {arm.seed}.",
        owner=shared_owner(arm.recipe),
        kinds=("deepspeed", "pytorch"),
        pool="training",
        priority=priority,
    )  # fmt: skip


def sample_of(experiment: Experiment) -> str:
    """Return the key of the asset that evaluates a sample of a source's text."""
    return f"{PREFIX}/{experiment.name}/sample"


def _sampled(experiment: Experiment) -> tuple[str, ...]:
    """Return the key of the asset that evaluates a source's sample, or nothing if the experiment has no source."""
    return (sample_of(experiment),) if experiment.source else ()


def _sample(experiment: Experiment, arms: Sequence[Arm], known: Known | None) -> list[Stage]:
    """Return the stage that compares a source's sample with the text of the arm without the source."""
    if experiment.source is None:
        return []
    ours = next(one for one in arms if one.arm == WITH)
    return [
        Stage(
            asset=sample_of(experiment),
            deps=(),
            make=partial(_assess, experiment, arms),
            version=answer.SAMPLE_VERSION,
            params={
                "recipe": recipe_fingerprint(ours.recipe),
                "source": experiment.source.model_dump(mode="json", exclude=PRICE),
            },
            outside=partial(read_outside, ours, selected(stages(ours.recipe), CORPUS), known),
            group=PREFIX,
            description=f"{experiment.question} Shares of a sample from the source that are accepted, new and "
            "effective.",
            owner=shared_owner(arms[0].recipe),
            kinds=("json",),
            pool="training",
            priority=len(arms) + 1,
        )
    ]


def _assess(experiment: Experiment, arms: Sequence[Arm], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Build the corpus of the arm without the source, and compare a sample of the source with it."""
    from plinth_lab.source_value import assessment as value

    assert experiment.source is not None
    if experiment.source.anneal:
        require_checkpoint(ctx, experiment.source.anneal.checkpoint)
    base, ours = (next(one for one in arms if one.arm == name) for name in (experiment.base, WITH))
    made = played(ctx, experiment, base, say, CORPUS)
    own = Context(ctx.workspace.branch(base.branch), ctx.engine, ctx.progress, requested_by=ctx.requested_by)
    found = value.assess(
        own, ours.recipe.corpus.buckets[BUCKET], base.recipe.corpus, annotator_parameters(base.recipe),
        value.known(own), sample_bytes=round(experiment.source.sample_mb * 2**20),
        test=measure.texts(ctx, {name: made[f"protected/{name}"] for name in experiment.test}),
    )  # fmt: skip
    return answer.sample_of(experiment, arms, found)


def forecast_of(experiment: Experiment) -> str:
    """Return the key of the asset with the forecast of a scaling ladder."""
    return f"{PREFIX}/{experiment.name}/forecast"


def _foretold(experiment: Experiment, arm: Arm) -> tuple[str, ...]:
    """Return the key of the ladder's forecast if the forecast predicts this run, otherwise nothing.

    The forecast is an input of such a run, so that it is stored before the run starts.
    """
    return (forecast_of(experiment),) if experiment.ladder and arm.size == experiment.ladder.held_out else ()


def _forecast(experiment: Experiment, arms: Sequence[Arm]) -> Stage:
    return Stage(
        asset=forecast_of(experiment),
        deps=tuple(one.asset for one in arms if not _foretold(experiment, one)),
        make=partial(_foretell, experiment, arms),
        version=answer.FORECAST_VERSION,
        params={"ladder": experiment.ladder.model_dump() if experiment.ladder else {}},
        group=PREFIX,
        description=f"{experiment.question} Scaling law fitted to the other sizes, and its prediction for the held-out "
        "size.",
        owner=shared_owner(arms[0].recipe),
        kinds=("json",),
        pool="training",
    )


def _foretell(experiment: Experiment, arms: Sequence[Arm], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return answer.forecast_of(experiment, arms, inputs)


def _make(
    experiment: Experiment,
    arm: Arm,
    before: Sequence[Arm],
    failed: PlinthError | None,
    ctx: Context,
    inputs: Inputs,
    say: Say,
) -> Manifest:
    if _refusal(experiment, inputs.get(sample_of(experiment))):
        return measure.kept(arm, "stopped", ANSWERED, inputs, [])
    scored = measure.common_scores(ctx, [inputs[one.asset] for one in before])
    if scored and (reason := answer.cannot_win(experiment, arm, scored)):
        say(reason)
        return measure.kept(arm, "stopped", reason, inputs, [])
    try:
        if failed is not None:
            raise failed
        made = played(ctx, experiment, arm, say)
    except NOT_OF_THE_ARM:
        raise
    except OF_THE_ARM as error:
        reason = error.brief.partition("\n")[0].rstrip(": ")
        reason = reason.replace(str(ctx.workspace.root), "the workspace")  # independent of the workspace's path
        say(f"{arm.asset} failed: {reason}")
        return measure.kept(arm, "failed", reason, {}, [])
    return measure.measured(ctx, arm, experiment.curve_points, made, tuple(experiment.test))


def _refusal(experiment: Experiment, sample: Manifest | None) -> str:
    """Return the reason why a source's sample already decides the question, or an empty string."""
    return str(sample.stats["refusal"]) if experiment.source and sample else ""


def is_stopped(ctx: Context, experiment: Experiment, arm: Arm, arms: Sequence[Arm]) -> bool:
    """Return True if a run need not start, because a sample or runs with earlier seeds have decided the question."""
    if any(_refusal(experiment, ctx.refs.current(one)) for one in _sampled(experiment)):
        return True
    runs = [ctx.refs.current(one.asset) for one in _before(experiment, arms, arm)]
    return bool(runs and answer.cannot_win(experiment, arm, measure.common_scores(ctx, runs)))


def effects_of(experiment: Experiment) -> str:
    """Return the key of the asset with the effects of an experiment's arms."""
    return f"{PREFIX}/{experiment.name}/effects"


def _effects(experiment: Experiment, arms: Sequence[Arm]) -> Stage:
    return Stage(
        asset=effects_of(experiment),
        deps=(
            *(one.asset for one in arms),
            *((forecast_of(experiment),) if experiment.ladder else ()),
            *_sampled(experiment),
        ),
        make=partial(_compare, experiment, arms),
        version=answer.VERSION,
        params={"base": experiment.base, "question": experiment.question}
        | {name: one.model_dump(mode="json") for name in answer.ASKED if (one := getattr(experiment, name))},
        group=PREFIX,
        description=f"{experiment.question} Every arm compared with {experiment.base}, paired by seed and document.",
        owner=shared_owner(arms[0].recipe),
        kinds=("json",),
        present=partial(_present, experiment, arms),
        pool="training",
    )


def _compare(experiment: Experiment, arms: Sequence[Arm], ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    foretold = inputs[forecast_of(experiment)] if experiment.ladder else None
    sample = inputs[sample_of(experiment)] if experiment.source else None
    return answer.of(ctx, experiment, arms, [inputs[one.asset] for one in arms], foretold, sample)


def _present(experiment: Experiment, arms: Sequence[Arm], ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[one["size"], one["arm"], one["slice"], one["finding"]] for one in made.stats["effects"]]
    return {
        "page": page_value(ctx, show(ctx, experiment, arms, made)),
        "effects": markdown(table(["size", "arm", "slice", "finding"], rows)),
        **({"verdict": f"{found['verdict']}: {found['reason']}"} if (found := made.stats.get("value")) else {}),
        **({"confirmation": f"{one['status']}: {one['reason']}"} if (one := made.stats.get("confirmation")) else {}),
    }


def path(ctx: Context, experiment: Experiment) -> Path:
    """Return the path of an experiment's HTML page."""
    return ctx.workspace.reports / f"experiment-{experiment.name}.html"


def show(ctx: Context, experiment: Experiment, arms: Sequence[Arm], made: Manifest) -> Path:
    """Write the page of an experiment and return its path."""
    target = path(ctx, experiment)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, answer.page(ctx, experiment, arms, made).encode())
    return target
