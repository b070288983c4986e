"""Game days that need Dagster, MLflow or a registry, and the table of all of them.

orchestrator_day  Dagster is killed; orchestrated is the Dagster that is killed
mlflow_day        MLflow is away
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plinth.operation.gamedays import table

#: Name -> module and attribute; those of the library first.
TABLE: Final[Mapping[str, str]] = {
    **table.TABLE,
    "orchestrator-death": "jobs.gamedays.orchestrator_day:DEATH",
    "mlflow-away": "jobs.gamedays.mlflow_day:MLFLOW",
}
