"""The workspace and its workers as a Dagster resource: set up once per run, shared by its steps."""

from __future__ import annotations

import dagster as dg
from pydantic import PrivateAttr

from plinth.compute.engine import Local
from plinth.compute.progress import Lines, Progress
from plinth.context import Context
from plinth.storage.workspace import Workspace


class PlinthResource(dg.ConfigurableResource["PlinthResource"]):
    """Opens the workspace and a pool of workers; neither enters an identity."""

    workspace: str
    workers: int = 2

    _engine: Local | None = PrivateAttr(default=None)
    _progress: Progress = PrivateAttr(default_factory=Lines)

    def shown_by(self, progress: Progress) -> PlinthResource:
        """The same resource with another way to show progress."""
        copy = PlinthResource(workspace=self.workspace, workers=self.workers)
        copy._progress = progress
        return copy

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        Workspace(self.workspace).ensure()
        self._engine = Local(self.workers)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._engine:
            self._engine.close()
            self._engine = None

    def context(self) -> Context:
        """A stage's runtime context."""
        engine = self._engine or Local(self.workers)
        return Context(Workspace(self.workspace), engine, self._progress)
