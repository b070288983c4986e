"""Libraries that some tests compare with, imported at first use: each process collects all modules and runs a few."""

from __future__ import annotations

import importlib
from typing import Any

#: Libraries that no module may import when it is collected: each test process, and each fork, would carry them.
LARGE = frozenset(
    ("accelerate", "datasets", "deepspeed", "great_expectations", "lm_eval", "mlflow", "moto", "ray", "transformers")
)
#: Those that were imported by the end of the collection, of which a test complains.
COLLECTED = set[str]()


class Peer:
    """Module that is imported when an attribute of it is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "_mock_name":  # pytest asks every object of a module for these
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
