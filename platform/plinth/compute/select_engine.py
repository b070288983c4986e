"""Where corpus stages run: local processes or a Ray cluster. Changes the time, and not one byte of a result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from plinth.compute.engine import Engine, LocalEngine
from plinth.errors import RecipeError

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Compute:
    """An engine by name.

    Args:
        engine: `local` or `ray`.
        workers: local processes; cores of a Ray cluster that is started here.
        address: of a running Ray cluster, `host:port` or `auto`; empty starts one on this machine.
        share: this process is one of several over the same workspace, `i/n` (`share`); empty: the only one.
    """

    engine: str = "local"
    workers: int = 2
    address: str = ""
    share: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Compute:
        """`PLINTH_ENGINE`, `PLINTH_WORKERS` and `PLINTH_RAY_ADDRESS`, for processes that Dagster starts."""
        return cls(
            environment.get("PLINTH_ENGINE", "local"),
            int(environment.get("PLINTH_WORKERS", "2")),
            environment.get("PLINTH_RAY_ADDRESS", ""),
        )

    def environment(self) -> dict[str, str]:
        """The same as variables, for a child process."""
        return {"PLINTH_ENGINE": self.engine, "PLINTH_WORKERS": str(self.workers), "PLINTH_RAY_ADDRESS": self.address}

    def open(self) -> Engine:
        """The engine; close it when done.

        Raises:
            RecipeError: there is no engine of this name.
        """
        if self.engine == "local":
            return LocalEngine(self.workers)
        if self.engine == "ray":
            from plinth.compute.ray_engine import RayEngine

            return RayEngine(self.address, self.workers)
        raise RecipeError(f"no engine {self.engine!r}", expected=" or ".join(ENGINES))


#: What a run uses when nothing is said.
DEFAULT = Compute()
