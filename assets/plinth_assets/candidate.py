"""`candidate` and `release`: registered and judged; promoted when every gate, approvals among them, passes."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus.curate import claims
from plinth.errors import GateError
from plinth.evaluation.measurement import measurements
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.training import config, manifests
from plinth_assets import pages
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage, by_bucket, each, shared_owner
from plinth_registry import api, candidate
from plinth_registry.gates.facts import GrantedUses
from plinth_registry.gates.result import blocking, summary

VERSION = "1"
CANDIDATE = Step(name="candidate", version=VERSION)
RELEASE = Step(name="release", version=VERSION)


def stages(recipe: Recipe) -> list[Stage]:
    """The candidate, and its release after approval."""
    if recipe.release is None:
        return []
    owner, name = shared_owner(recipe), recipe.release.name
    return [
        Stage(
            asset="candidate",
            deps=(
                *("checkpoint", "evaluation", "run", "contamination", pages.EVALUATION_PAGE),
                *each(recipe, "documents", "verdicts", "curated"),
                *_scored(recipe),
            ),
            make=partial(_candidate, recipe),
            intact=lambda ctx, made: (ctx.workspace.models / str(made.stats["directory"])).is_dir(),
            version=VERSION,
            params={"release": name},
            group="registry",
            description=f"The checkpoint as a signed version of `{name}-candidate`, with its evidence.",
            owner=owner,
            kinds=("mlflow",),
            present=_present,
            pool="registry",
        ),
        Stage(
            asset="release",
            deps=("candidate",),
            make=partial(_release, recipe),
            version=VERSION,
            params=recipe.release.model_dump(mode="json", exclude={"auto_approve_as"}),
            outside=partial(_history, recipe),
            group="release",
            description=f"The promoted version of `{name}`. Made by the approval sensor, refused without approval.",
            owner=owner,
            kinds=("mlflow",),
            present=_present,
            pool="registry",
        ),
    ]


def _candidate(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    run, checkpoint, evaluation = inputs["run"], inputs["checkpoint"], inputs["evaluation"]
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    measured = manifests.facts(ctx, prepared)
    facts = candidate.Facts(
        contaminated_documents=claims.contaminated(
            ctx.store, by_bucket(recipe, inputs, "verdicts"), inputs["contamination"]
        ),
        licences=claims.licences(ctx.store, by_bucket(recipe, inputs, "curated")),
        sources={
            name: GrantedUses.model_validate(one)
            for name, one in claims.terms(
                ctx.store, by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "curated")
            ).items()
        },
        stability={
            "restarts": measured["restarts"],
            "interventions": measured["interventions"],
            "refused_checkpoints": measured["refused_checkpoints"],
            "diverged_steps": len(measured["diverged_steps"]),
        },
        requested_by=ctx.requested_by,
        cost={"wall_s": measured["training_s"], "tokens": float(run.stats["tokens"])},
    )
    materials = {asset: made.digest for asset, made in inputs.items()}
    registered = candidate.CandidateRun(id=prepared.run_id, key=prepared.key)
    scored = {asset: inputs[asset] for asset in _scored(recipe)}
    found, gates = api.register_candidate(ctx, recipe, checkpoint, evaluation, registered, facts, scored, materials)
    api.keep_files(ctx, recipe, prepared.run_id, [pages.show_page(ctx, recipe, inputs[pages.EVALUATION_PAGE])])
    say(f"candidate {found.model} version {found.version}: {summary(gates)}")
    stats = {"model": found.model, "version": found.version, "key": found.key, "directory": found.directory.name}
    return manifest("candidate", CANDIDATE, inputs, [], stats)


def _scored(recipe: Recipe) -> tuple[str, ...]:
    """Assets whose scores MLflow shows with the model."""
    shown = [one for one in measurements(recipe) if one.scores]
    return tuple(stage.asset for one in shown for stage in one.stages(recipe) if one.has(stage.asset))


def _history(recipe: Recipe, ctx: Context) -> str:
    """Digest of all promotions; a release made or rolled back elsewhere makes this asset stale."""
    return fingerprint.digest([record.model_dump(mode="json") for record in api.history(ctx, recipe)])


def _release(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Promote approved candidates.

    Raises:
        GateError: nothing has ever been released and no candidate may be.
    """
    for promoted in api.promote_if_approved(ctx, recipe):
        say(f"{promoted.model} version {promoted.version}: {promoted.action}")
    history = api.history(ctx, recipe)
    if not history:
        raise GateError(
            f"no candidate of {recipe.required_release().name} may be released",
            found=waiting(ctx, recipe),
            expected="no gate failed or pending",
            remedy="`plinth approve` lists the candidates with every gate and its reason",
        )
    last = history[-1]
    stats = last.model_dump(mode="json")
    return manifest("release", RELEASE, inputs, [], stats)


def waiting(ctx: Context, recipe: Recipe) -> str:
    """Pending candidates, with the gates that block them."""
    lines = [
        f"version {status.version}: "
        + (status.error or ", ".join(f"{gate.name} {gate.state} ({gate.reason})" for gate in blocking(status.gates)))
        for status in api.pending(ctx, recipe)
    ]
    return "; ".join(lines) or "no candidate"


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, str | int | float)]
    return {"facts": markdown(table(["fact", "value"], rows))}
