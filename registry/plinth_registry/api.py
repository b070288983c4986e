"""Functions for assets and sensors that combine several modules. Each function starts the MLflow server if it is not
running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plinth.compute.context import Context
from plinth.errors import GateError
from plinth.evaluation import serving
from plinth.provenance import statements
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_registry import candidate, decisions, judgement, registration, run_metrics, signing, trained
from plinth_registry.canary import CanaryStatus
from plinth_registry.canary.watch import CanaryTick, observe, tick
from plinth_registry.candidate import Candidate, CandidateRun, Facts
from plinth_registry.decisions import CandidateStatus
from plinth_registry.gates import GateResult, summary
from plinth_registry.mlflow import connection
from plinth_registry.promotion import CANARY, CHAMPION, Stage
from plinth_registry.releases import ReleaseRecord

#: Actor of automatic canary decisions.
CANARY_SENSOR = "canary sensor"


@connection.named("register a candidate")
def register_candidate(
    ctx: Context,
    recipe: Recipe,
    checkpoint: Manifest,
    evaluation: Manifest,
    run: CandidateRun,
    facts: Facts,
    measured: Mapping[str, Manifest] = MappingProxyType({}),
    materials: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Candidate, tuple[GateResult, ...]]:
    """Sign a checkpoint with its provenance, register it and evaluate its gates. If the same work is registered again,
    the same version is returned.

    Scores of tasks, proxies and probes, and serving speeds (`measured`, by asset), become metrics of the model in
    MLflow. Each fact is attested by the role allowed to state it, with its `materials` (digests by asset).

    Raises:
        LineageError: the ancestry is incomplete, the evaluation or a measurement belongs to another checkpoint, or the
            trainer attested nothing about this checkpoint.
        SignatureError: the model directory exists and has been changed.
        IntegrityError, MissingError: a blob of the checkpoint has changed or is absent.
        RegistryError: MLflow cannot be reached.
    """
    chain = candidate.ancestry(ctx, checkpoint.digest, evaluation.digest)
    training = trained.gathered(ctx, checkpoint, run.id)
    provenance = statements.provenance(recipe, checkpoint, chain, run_id=run.id, run_key=run.key, training=training)
    trained.proved(ctx, checkpoint, provenance)
    directory = signing.materialise(ctx, checkpoint, provenance)
    key = candidate.state_facts(ctx, directory, checkpoint.digest, evaluation.digest, run, facts)
    candidate.attest(ctx, recipe, checkpoint, directory, facts, materials)
    client = connection.connect(ctx.workspace)
    with registration.locked(ctx):
        version = registration.ensure_version(
            ctx,
            client,
            recipe,
            key=key,
            chain=chain,
            checkpoint=checkpoint,
            evaluation=evaluation,
            run=run,
            facts=facts,
            source=candidate.source_uri(ctx.workspace, directory),
        )
        run_metrics.log_scores(client, version, checkpoint, measured, serving.read(ctx, checkpoint.digest))
    judged = judgement.judge(ctx, client, recipe, version)
    return judged.candidate, judged.results


@connection.named("relay a timeline")
def relay_timeline(ctx: Context, recipe: Recipe, run_id: str, events: list[dict[str, Any]]) -> int:
    """Log a run's events to MLflow, each event once, and return the number of new training steps."""
    return run_metrics.relay(connection.connect(ctx.workspace), recipe.name, run_id, events)


@connection.named("store the page of a run")
def keep_files(ctx: Context, recipe: Recipe, run_id: str, paths: Iterable[Path]) -> None:
    """Store files, such as a run's page and its timeline, as artifacts of its MLflow run."""
    run_metrics.keep(connection.connect(ctx.workspace), recipe.name, run_id, paths)


@connection.named("describe a run")
def describe_run(
    ctx: Context, recipe: Recipe, run_id: str, params: Mapping[str, Any], tags: Mapping[str, str],
    figures: Mapping[str, float] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write the parameters, requester, source and metrics of a training run to the run in MLflow."""
    run_metrics.describe(
        connection.connect(ctx.workspace), recipe.name, run_id, params=params, tags=tags, figures=figures
    )


@connection.named("link the pages")
def link_pages(ctx: Context, recipe: Recipe, url: str) -> tuple[str, ...]:
    """Add a link to the workspace's pages to MLflow's experiment and models. Return the names of changed experiments
    and models."""
    return registration.link_to_pages(connection.connect(ctx.workspace), recipe, url)


def promote_if_approved(ctx: Context, recipe: Recipe, by: str = "approval sensor") -> tuple[ReleaseRecord, ...]:
    """Promote every candidate that no gate blocks, one at a time: to champion, or to canary if the policy requires a
    canary. Also promote a canary that is within the margin of the champion. The sensors' job calls this function."""
    proved = promote_if_proved(ctx, recipe)
    stage, waiting = decisions.next_stage(ctx, recipe), decisions.ready(ctx, recipe)
    chosen = waiting[:1] if stage == CANARY else waiting
    return (*proved, *(_promote_ready(ctx, recipe, one, by, stage or CHAMPION) for one in chosen))


def _promote_ready(ctx: Context, recipe: Recipe, one: CandidateStatus, by: str, stage: Stage) -> ReleaseRecord:
    return decisions.promote(ctx, recipe, one.version, by, f"gates {summary(one.gates)}", stage)


def promote_if_proved(ctx: Context, recipe: Recipe, by: str = CANARY_SENSOR) -> tuple[ReleaseRecord, ...]:
    """Promote the canary to champion, if the policy allows this without a person, the canary is within the margin of
    the champion, and every gate passes again."""
    try:
        seen = observe(ctx, recipe)
    except GateError:  # no policy is signed
        return ()
    if seen is None or (seen.policy.promote, seen.status.trial.decision) != ("automatic", "promote"):
        return ()
    reason = f"within the margin of the champion {seen.status.champion}: {seen.status.trial.reason}"
    return (decisions.promote(ctx, recipe, seen.status.candidate_version, by, reason),)


def canary_status(ctx: Context, recipe: Recipe) -> CanaryStatus | None:
    """Return the comparison of the canary with its champion, evaluated now, or None if there is no canary.

    Raises:
        GateError: no gate policy is signed.
        SignatureError: the history or the policy does not verify.
    """
    found = observe(ctx, recipe)
    return None if found is None else found.status


@connection.named("judge the canary")
def watch_canary(ctx: Context, recipe: Recipe, by: str = CANARY_SENSOR) -> CanaryTick | None:
    """Compare the canary with its champion now, and roll it back if it is worse. Return None if there is no canary. The
    sensor calls this function.

    Raises:
        GateError: no gate policy is signed.
        SignatureError: the history or the policy does not verify, or the promoter's key is not usable.
    """
    if decisions.history(ctx, recipe).standing.canary is None:
        return None
    return tick(ctx, connection.connect(ctx.workspace), recipe, by)
