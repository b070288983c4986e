"""Annotators that run in an external process through Dagster Pipes.

The resource of a team's project (`PipesSubprocessClient`, or the client of Kubernetes, Databricks, …) starts the
program. Logs, metadata and asset checks that the program reports are shown on the sidecar's asset. The sidecar itself
is checked and published by Plinth (`plinth.corpus.annotate.external`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
)
from pydantic import Field

from plinth.errors import CheckFailedError, StageError
from plinth.processes import without_secrets

#: Extra of the Pipes context with the path of the description of the work.
EXTRA = "work"


class PipesAnnotator(dg.Model, dg.Resolvable):
    """Pipes client that runs an annotator."""

    client: str = Field(description="Key of the Pipes client among the resources of the project.")
    arguments: Mapping[str, Any] = Field(
        default_factory=dict, description="Arguments of the client's `run`, such as command, env, cwd or image."
    )
    checks: Sequence[str] = Field((), description="Names of the asset checks that the program reports.")


@dataclass
class PipesReport:
    """Metadata and check results that a program reported during one materialization."""

    name: str
    pipes: PipesAnnotator
    context: dg.AssetExecutionContext
    metadata: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, dg.AssetCheckResult] = field(default_factory=dict)

    def run(self, work: Path) -> None:
        """Run the program and collect its report.

        Raises:
            StageError: the program failed, or reported other checks than the declared ones.
            CheckFailedError: a check failed with severity ERROR.
        """
        client = getattr(self.context.resources, self.pipes.client)
        try:
            with without_secrets():  # a client may pass the whole environment to the program
                done = client.run(context=self.context, extras={EXTRA: str(work)}, **self.pipes.arguments)
            results = done.get_results(implicit_materializations=False)
        except Exception as error:  # each client has its own errors
            raise StageError(
                f"the program of annotator {self.name} failed",
                found=f"{type(error).__name__}: {error}",
                expected=f"a program that ends without an error, started by the Pipes client {self.pipes.client}",
                remedy="read its log in the Dagster run, correct the program or `pipes` in defs.yaml, and run it again",
            ) from error
        for result in results:
            if isinstance(result, dg.AssetCheckResult):
                self.checks[str(result.check_name)] = result
            elif isinstance(result, dg.MaterializeResult):
                self.metadata |= result.metadata or {}
        self._require_checks()

    def _require_checks(self) -> None:
        found, self.checks = self.checks, {name: one for name, one in self.checks.items() if name in self.pipes.checks}
        if set(found) != set(self.pipes.checks):
            raise StageError(
                f"the program of annotator {self.name} reported other checks than declared",
                found=", ".join(sorted(found)) or "no checks",
                expected=", ".join(self.pipes.checks) or "no checks",
                remedy="list the checks that the program reports under `checks` of this annotator in defs.yaml",
            )
        failed = [name for name, one in found.items() if not one.passed and one.severity == dg.AssetCheckSeverity.ERROR]
        if failed:
            raise CheckFailedError(
                f"the program of annotator {self.name} reported a failed check, and its sidecar was not published",
                found=", ".join(failed),
                expected="all checks of severity ERROR to pass",
                remedy="fix the input or the program, and run it again",
            )

    def shown(self, event: Any) -> Any:
        """Return a Dagster event of the asset; its materialization gets the report."""
        if not isinstance(event, dg.MaterializeResult):
            return event
        checks = [*(event.check_results or ()), *(self.pending() or self._earlier())]
        return event._replace(metadata={**self.metadata, **(event.metadata or {})}, check_results=checks)

    def pending(self) -> list[dg.AssetCheckResult]:
        """Return the reported check results that Dagster has not received yet."""
        checks, self.checks = list(self.checks.values()), {}
        return checks

    def _earlier(self) -> Iterator[dg.AssetCheckResult]:
        """Yield the last results of the checks, for a sidecar that was up to date. A check without a result fails with
        a warning."""
        history = self.context.instance.event_log_storage.get_asset_check_execution_history
        for name in self.pipes.checks:
            # Only finished evaluations: the current run has planned one.
            found = history(dg.AssetCheckKey(self.context.asset_key, name), limit=1, status=COMPLETED)
            event = found[0].event if found else None
            last = event.asset_check_evaluation if event else None
            yield dg.AssetCheckResult(
                check_name=name,
                passed=bool(last and last.passed),
                severity=last.severity if last else dg.AssetCheckSeverity.WARN,
                description="not evaluated again: the program had nothing to do",
                metadata=dict(last.metadata) if last else {},
            )
