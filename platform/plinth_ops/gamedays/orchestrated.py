"""`python -m plinth_ops.gamedays.orchestrated CONFIG`: Dagster materializes an asset that submits or finds a job.

It follows the job to its end, through the functions that the asset `run` of every pipeline calls.

Does not belong here: what kills this process (`orchestrator_day`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import dagster as dg

from plinth.compute.context import Context
from plinth.operation import admission
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import job
from plinth_ops.gamedays import faults

ASSET: Final = "run"

#: Printed once the job is submitted, or found.
FOLLOWING: Final = "following job"


def asset(path: Path) -> dg.AssetsDefinition:
    """The asset of the run with this configuration."""

    @dg.asset(name=ASSET)
    def followed() -> Any:
        config = configuration.load(path)
        ctx = Context(Workspace(config.workspace))
        with faults.submission():
            handle = admission.submit(ctx, config)
        print(f"{FOLLOWING} {handle.id}", flush=True)
        ended = job.follow(ctx, config)
        return dg.MaterializeResult(metadata={"job": handle.id, "status": ended.status, "step": ended.step})

    return followed


def main() -> int:
    """Materialise; 0 where the run has finished."""
    return 0 if dg.materialize([asset(Path(sys.argv[1]))], instance=dg.DagsterInstance.get()).success else 1


if __name__ == "__main__":
    sys.exit(main())
