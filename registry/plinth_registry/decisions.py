"""Decisions about releases, each with the connection to MLflow that it writes to.

Does not belong here: decisions about candidates (`review`), marks (`freeze`), what assets and sensors call (`api`).
"""

from __future__ import annotations

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth_registry import mirror, mlflow_client, promotion, registration, releases, review
from plinth_registry.history import ReleaseHistory, ReleaseRecord
from plinth_registry.promotion import CHAMPION, Stage


@mlflow_client.named("promote a candidate")
def promote(
    ctx: Context, recipe: Recipe, version: str | None, by: str, reason: str, stage: Stage = CHAMPION
) -> ReleaseRecord:
    """Promote a candidate version (None: the newest), after everything was verified again.

    Raises:
        SignatureError, LineageError, GateError, MissingError: see `promotion.promote`.
    """
    client = mlflow_client.connect(ctx.workspace)
    found = review.version_of(client, recipe, version)
    return promotion.promote(ctx, client, recipe, str(found.version), by=by, reason=reason, stage=stage)


@mlflow_client.named("roll back")
def rollback(ctx: Context, recipe: Recipe, by: str, reason: str, withdraw: bool = False) -> ReleaseRecord:
    """Give the champion's alias back to the last good version; see `promotion.rollback`."""
    return promotion.rollback(
        ctx, mlflow_client.connect(ctx.workspace), recipe, by=by, reason=reason, withdraw=withdraw
    )


@mlflow_client.named("give a canary back")
def return_canary(ctx: Context, recipe: Recipe, by: str, reason: str) -> ReleaseRecord:
    """Take the canary's place away; see `promotion.return_canary`."""
    return promotion.return_canary(ctx, mlflow_client.connect(ctx.workspace), recipe, by=by, reason=reason)


@mlflow_client.named("repair MLflow's aliases")
def repair(ctx: Context, recipe: Recipe, *, expired: bool = False) -> tuple[str, ...]:
    """Make MLflow show what the signed history says, and sign its head again when it is old.

    Returns what differed, a sentence each: somebody has set an alias or made a version by hand, or a promotion was
    interrupted.

    Args:
        expired: whether a head that has expired is signed again; see `releases.refresh`.

    Raises:
        SignatureError: the history does not hold.
    """
    name = recipe.required_release().name
    if not releases.history(ctx, name, expired=expired):
        return ()
    with registration.locked(ctx):
        releases.refresh(ctx, expired=expired)
        return mirror.repair(ctx, mlflow_client.connect(ctx.workspace), name)


def missing_in_mlflow(ctx: Context, recipe: Recipe) -> tuple[str, ...]:
    """What MLflow lacks of the signed history after `repair`.

    Raises:
        SignatureError: the history does not hold.
    """
    name = recipe.required_release().name
    return mirror.missing(ctx, mlflow_client.connect(ctx.workspace), name) if releases.history(ctx, name) else ()


def history(ctx: Context, recipe: Recipe) -> ReleaseHistory:
    """Signed records of every promotion and rollback of a release, oldest first."""
    return releases.history(ctx, recipe.required_release().name)
