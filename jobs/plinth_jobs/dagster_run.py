"""Dagster runs in this process, recorded in the workspace's instance as the daemon's are."""

from __future__ import annotations

import getpass
import os
import warnings

import dagster as dg

from plinth.compute.progress import Progress
from plinth.compute.select_engine import Compute
from plinth.errors import StageError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_assets.framework.build import REQUESTED_BY
from plinth_assets.framework.resources import Session
from plinth_jobs import asset_jobs, definitions
from plinth_jobs.alarms import record_failure
from plinth_jobs.dagster_parts import HOST, host, kept_connections
from plinth_jobs.instance import interruptible, of_code_location, open_instance

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def requested_by() -> str:
    """The person who asks for a run here: `PLINTH_REQUESTED_BY`, or the user of this machine."""
    return os.environ.get("PLINTH_REQUESTED_BY") or getpass.getuser()


@interruptible()
def execute(
    space: Workspace, recipe: Recipe, assets: list[str], compute: Compute, job: str, progress: Progress
) -> tuple[str, ...]:
    """One Dagster run of these assets, in this process, recorded in the workspace's instance.

    Returns:
        Warnings of their checks.
    """
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    session = Session(progress)
    with (
        progress.meter("assets", len(assets)) as session.assets,
        kept_connections(),
        dg.DagsterInstance.ephemeral() if compute.share else open_instance(space) as instance,
    ):
        session.assets.advance(0, "starting Dagster")
        defs = definitions.build(recipe, space.root, compute=compute, resources={"session": session})
        result = defs.resolve_job_def(job).execute_in_process(
            instance=of_code_location(instance, job),
            asset_selection=[dg.AssetKey(asset.split("/")) for asset in assets],
            run_config=QUIET,
            tags={REQUESTED_BY: requested_by(), HOST: host(), **asset_jobs.tags(recipe, space)},
            raise_on_error=False,
        )
        if not result.success:
            raise_first_failure(space, job, result, session)
    return tuple(session.warnings)


def raise_first_failure(space: Workspace, job: str, result: dg.ExecuteInProcessResult, session: Session) -> None:
    """Raise what a Dagster run failed of, recorded for the alert; a run that its user interrupted is no failure.

    Raises:
        PlinthError: the error of the first asset that failed.
        KeyboardInterrupt: the run was interrupted.
    """
    failures = [event for event in result.all_events if event.is_step_failure]
    if not failures:
        raise StageError(f"the Dagster run {result.run_id} failed before its first step", remedy="see `plinth up`")
    known = session.failures[0] if session.failures else None
    data = failures[0].step_failure_data
    cause = data.error.cause if data.error and data.error.cause else data.error
    text = str(known) if known else cause.message.strip() if cause else str(failures[0].message)
    if "DagsterExecutionInterruptedError" in text:  # requested by a user: no failure, no alert
        raise KeyboardInterrupt
    record_failure(space.root, result.run_id, job, text)
    if known:
        raise known
    raise StageError(
        f"stage {(failures[0].step_key or '').replace('__', '/')} failed",
        found=text,
        remedy=f"a defect: Dagster run {result.run_id} (`plinth up`) has the traceback; finished parts are kept",
    )
