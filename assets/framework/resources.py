"""The workspace and its workers as a Dagster resource: set up once per run, shared by its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pydantic import PrivateAttr

from plinth.compute.context import Context
from plinth.compute.engine import Engine
from plinth.compute.progress import Lines, Progress
from plinth.compute.select_engine import Compute
from plinth.storage.workspace import Workspace

#: How progress is shown in this process; the last one counts. Lines end up in the logs that Dagster captures.
_SHOWN: list[Progress] = [Lines()]


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Show the progress of runs in this process some other way. Dagster rebuilds resources: they cannot carry it."""
    _SHOWN.append(progress)
    try:
        yield
    finally:
        _SHOWN.pop()


class PlinthResource(dg.ConfigurableResource["PlinthResource"]):
    """Opens the workspace and a pool of workers; neither enters an identity."""

    workspace: str
    engine: str = "local"
    workers: int = 2
    ray_address: str = ""

    _engine: Engine | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        Workspace(self.workspace).ensure()
        self._engine = self._compute.open()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._engine:
            self._engine.close()
            self._engine = None

    def context(self) -> Context:
        """A stage's runtime context."""
        engine = self._engine or self._compute.open()
        return Context(Workspace(self.workspace), engine, _SHOWN[-1])

    @property
    def _compute(self) -> Compute:
        return Compute(self.engine, self.workers, self.ray_address)

    @classmethod
    def over(cls, workspace: str, compute: Compute) -> PlinthResource:
        """The resource of a workspace, with the engine chosen."""
        return cls(workspace=workspace, engine=compute.engine, workers=compute.workers, ray_address=compute.address)
