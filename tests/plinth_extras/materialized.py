"""All assets of some stages, materialized in this process."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from plinth.compute.select_engine import Compute
from plinth_assets.framework import Stage
from plinth_assets.framework.build import Session, asset, resources_of
from plinth_jobs.instance import interruptible


def materialize(workspace: Path, stages: list[Stage]) -> tuple[Session, str]:
    session = Session()
    defs = dg.Definitions(
        assets=[asset(one) for one in stages],
        resources=resources_of(str(workspace), Compute("local", 1), session, "tiny"),
        jobs=[dg.define_asset_job("all_assets", dg.AssetSelection.all(), executor_def=dg.in_process_executor)],
    )
    with interruptible():
        result = defs.resolve_job_def("all_assets").execute_in_process(
            instance=dg.DagsterInstance.ephemeral(), raise_on_error=False
        )
    return session, result.run_id
