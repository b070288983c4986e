"""Game days that need MLflow or a registry, and the table of all of them.

mlflow_day  MLflow is away
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plinth.operation.gamedays import table

#: Name -> module and attribute; those of the library first.
TABLE: Final[Mapping[str, str]] = {
    **table.TABLE,
    "mlflow-away": "jobs.gamedays.mlflow_day:MLFLOW",
}
