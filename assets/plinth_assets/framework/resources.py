"""The workspace and its workers as a Dagster resource, set up once per run; the session of a run in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

import dagster as dg
from pydantic import PrivateAttr

from plinth.compute.context import Context, TaskShare
from plinth.compute.engine import Engine
from plinth.compute.progress import Meter, Progress, ProgressLines, SilentMeter
from plinth.compute.select_engine import Compute
from plinth.errors import PlinthError
from plinth.evaluation.engine.client import SPARE
from plinth.storage.workspace import Workspace
from plinth_assets.framework import data_docs


@dataclass
class Session:
    """Shared by the caller of a run in this process and the assets of that run.

    Dagster rebuilds configured resources, and keeps the words of an error but not its type: this object passes through
    as it is.

    Args:
        progress: where progress is shown; lines end up in the logs that Dagster captures.
        assets: counts the assets of the run.
        failures: errors of the assets that failed, in order.
        warnings: lines of the checks that failed without blocking, in order.
    """

    progress: Progress = field(default_factory=ProgressLines)
    assets: Meter = field(default_factory=SilentMeter)
    failures: list[PlinthError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class PlinthResource(dg.ConfigurableResource["PlinthResource"]):
    """Opens the workspace and a pool of workers; neither enters an identity."""

    workspace: str
    engine: str = "local"
    workers: int = 2
    ray_address: str = ""
    share: str = ""

    _engine: Engine | None = PrivateAttr(default=None)
    _session: Session | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        Workspace(self.workspace).ensure()
        self._engine = self._compute.open()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._session:
            self._session.assets.advance(0, "Great Expectations")
        for line in data_docs.finish():
            if self._session:
                self._session.warnings.append(line)
        if self._engine:
            self._engine.close()
            self._engine = None
        SPARE.end()

    def context(self, session: Session) -> Context:
        """A stage's runtime context."""
        self._session = session
        engine = self._engine or self._compute.open()
        return Context(Workspace(self.workspace), engine, session.progress, TaskShare.parse(self.share))

    @property
    def _compute(self) -> Compute:
        return Compute(self.engine, self.workers, self.ray_address, self.share)

    @classmethod
    def over(cls, workspace: str, compute: Compute) -> PlinthResource:
        """The resource of a workspace, with the engine chosen."""
        return cls(
            workspace=workspace,
            engine=compute.engine,
            workers=compute.workers,
            ray_address=compute.address,
            share=compute.share,
        )
