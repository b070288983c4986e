"""Game days that need Dagster, MLflow or a registry, and the table of all of them.

orchestrator_day  Dagster is killed; orchestrated is the Dagster that is killed
mlflow_day        MLflow is away
release_day       a bad release: detect, taint, roll back, find the cause, close the gate
scratch_models    small models that are trained, measured and released for it
variables         variables of the environment for a while
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plinth.operation.gamedays import table

#: Name -> module and attribute; those of the library first.
TABLE: Final[Mapping[str, str]] = {
    **table.TABLE,
    "orchestrator-death": "plinth_jobs.gamedays.orchestrator_day:DEATH",
    "bad-release": "plinth_jobs.gamedays.release_day:RELEASE",
    "mlflow-away": "plinth_jobs.gamedays.mlflow_day:MLFLOW",
}
