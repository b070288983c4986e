"""`objectives.yaml` of a workspace, and the indicators of all of its runs and assets.

    load(workspace)      objectives of the workspace
    tallies(ctx, ...)    good and total seconds of every indicator, for windows of any length
    measure(ctx, ...)    error budgets over the window of the objectives

    completeness(ctx)    function that checks the data lineage of a run; argument `complete` of the other two
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field, model_validator

from plinth.compute.context import Context
from plinth.errors import IntegrityError, LineageError, MissingError
from plinth.evaluation.measurement import release_gate
from plinth.operation import spending, workspace_files
from plinth.operation.spending_ledger import MICROS, Ledger, Reservation
from plinth.operation.workspace_files import read_settings
from plinth.provenance.statements import chain
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.timeline import read_events
from plinth_ops.service_levels.indicators import INDICATORS, budgets, of_assets, of_run
from plinth_ops.service_levels.tallies import AssetFacts, ErrorBudget, Objectives, RunFacts, Tally, run_facts
from plinth_registry.gates import GateResult, decided, missing
from plinth_registry.gates.facts import Evidence

#: Function that returns True if the data lineage of a run is complete, or None if that is unknown.
Complete = Callable[[RunConfig], bool | None]

#: File with the objectives of a workspace.
FILE = "objectives.yaml"
_TAIL_BYTES = 1 << 16


def load(workspace: Workspace) -> Objectives:
    """Read the objectives of a workspace. If there is no `objectives.yaml`, return the default objectives.

    Raises:
        RequestError: the file is invalid.
    """
    path = workspace.root / FILE
    return read_settings(path, Objectives, "has no valid objectives", "docs/slis.md")


def source(workspace: Workspace) -> str:
    """Return the source of a workspace's objectives as text. A gate uses the objectives of its policy instead."""
    return f"objectives of {FILE}" if (workspace.root / FILE).exists() else "default objectives"


def tallies(
    ctx: Context, objectives: Objectives, until: float, complete: Complete = lambda config: None
) -> list[Tally]:
    """Return the tallies of all runs and assets of a workspace at a time (Unix seconds).

    Runs whose last event is older than the objectives' window are not read.

    Raises:
        IntegrityError: a timeline or the asset log is broken.
        TrainingError: a run's configuration is broken.
        StorageError: the ledger of spending cannot be reached.
    """
    since = until - objectives.window_days * 86400
    prices, found = _submissions(ctx.workspace), list[Tally]()
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        if _last_time(path.with_name("events.jsonl")) < since:
            continue
        config = configuration.load(path)
        found += of_run(_facts(config, objectives, until, prices.get(config.run_id, []), complete), objectives)
    return found + of_assets(AssetFacts(list(workspace_files.read(ctx.workspace, until)), until), objectives)


def measure(
    ctx: Context, objectives: Objectives, until: float, complete: Complete = lambda config: None
) -> list[ErrorBudget]:
    """Return the error budgets of the window that ends at a time (Unix seconds).

    Raises the same errors as `tallies`.
    """
    return budgets(tallies(ctx, objectives, until, complete), objectives, until)


def completeness(ctx: Context) -> Complete:
    """Return a function that checks a run's data lineage from its mixture down to the source inventories.

    Every manifest must exist and be unchanged. Results are cached by mixture.
    """
    known: dict[str, bool] = {}

    def complete(config: RunConfig) -> bool:
        if config.mixture not in known:
            try:
                known[config.mixture] = bool(chain(ctx.refs, ctx.refs.load(config.mixture)).sources)
            except (LineageError, MissingError, IntegrityError):
                known[config.mixture] = False
        return known[config.mixture]

    return complete


def _facts(
    config: RunConfig, objectives: Objectives, until: float, known: list[Reservation], complete: Complete
) -> RunFacts:
    paid = [one.price for one in known if one.made <= until and not one.refused]
    return run_facts(
        config.run_id,
        read_events(config.directory.events),
        config.ranks,
        until,
        objectives.silence_s,
        price=paid[-1] / MICROS if paid else config.stopping.price_per_rank_hour,
        samples=[one for one in read_samples(config.directory) if float(one["time"]) <= until],
        fine_tunes=config.initial is not None,
        complete=complete(config),
    )


def _submissions(workspace: Workspace) -> dict[str, list[Reservation]]:
    """Return the submissions of this workspace by run, oldest first. The result is empty if there is no ledger."""
    place = spending.ledger_place(workspace, spending.load(workspace))
    if "://" not in place and not Path(place).exists():
        return {}
    found: dict[str, list[Reservation]] = {}
    for one in sorted(Ledger(place).find(spending.workspace_name(workspace)), key=lambda one: one.made):
        found.setdefault(one.run, []).append(one)
    return found


def _last_time(path: Path) -> float:
    """Return the time of the last complete event of a timeline, or infinity if unknown. Only the end of the file is
    read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().rpartition(b"\n")[0].splitlines()
        return float(json.loads(lines[-1])["time"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return float("inf")


ERROR_BUDGET = "error_budget"


class ErrorBudgetPolicy(Frozen):
    """Parameters of the gate `error_budget`. The objectives are part of the policy, so that no workspace can change
    them."""

    indicators: tuple[str, ...] = Field(
        ("job success", "checkpoint age", "restore time"),
        min_length=1,
        description="Indicators whose error budget must not be exhausted, by their names in `plinth ops sli`.",
    )
    required: tuple[str, ...] = Field(
        ("job success",), description="Indicators that must have data. The other indicators may be without data."
    )
    objectives: Objectives = Field(
        Objectives(),
        description="Objectives of the gate: time window, required shares and limits, as in `objectives.yaml`.",
    )

    @model_validator(mode="after")
    def _known(self) -> ErrorBudgetPolicy:
        if unknown := sorted({*self.indicators, *self.required} - set(INDICATORS)):
            raise ValueError(f"there is no indicator {unknown[0]!r}; known indicators: {', '.join(INDICATORS)}")
        if lacking := sorted(set(self.required) - set(self.indicators)):
            raise ValueError(f"{lacking[0]} is required but not listed in the indicators")
        return self


def find(ctx: Context, asked: ErrorBudgetPolicy) -> tuple[ErrorBudget, ...]:
    """Return the current error budgets of the workspace for the policy's objectives."""
    return tuple(measure(ctx, asked.objectives, time.time(), completeness(ctx)))


def error_budget(asked: ErrorBudgetPolicy, evidence: Evidence) -> GateResult:
    """Require that no error budget named by the policy is exhausted and that the required indicators have data. A
    rank-second is one second of one training process. `job success` is the share of rank-seconds spent in jobs that did
    not fail; `checkpoint age` is the share of rank-seconds in which the newest checkpoint was recent enough."""
    budgets = [ErrorBudget.model_validate(one) for one in evidence.own.get(ERROR_BUDGET) or ()]
    found = {one.indicator: one for one in budgets if one.indicator in asked.indicators}
    unknown = [name for name in asked.required if name not in found or not found[name].is_judged]
    days = asked.objectives.window_days
    if unknown:
        return missing(ERROR_BUDGET, f"no data in the last {days:g} days for {', '.join(unknown)}")
    measured = [one for one in found.values() if one.is_judged]
    spent = [one for one in measured if one.is_spent]
    idle = [name for name in asked.indicators if name not in {one.indicator for one in measured}]
    if not measured:
        reason = f"no data in the last {days:g} days: {', '.join(idle)}"
        return GateResult(name=ERROR_BUDGET, state="skipped", reason=reason)
    parts = ["; ".join(one.words for one in spent or measured)]
    parts.append(f"measured over the last {days:g} days against the targets of the gate policy")
    if idle:
        parts.append(f"no data: {', '.join(idle)}")
    if others := [one.words for one in budgets if one.indicator not in found and one.is_spent]:
        parts.append(f"error budget exhausted, but not required by the policy: {'; '.join(others)}")
    head = "error budget exhausted" if spent else "no required error budget is exhausted"
    known = {one.indicator: one.model_dump(include={"good_s", "total_s", "target"}) for one in measured}
    return decided(ERROR_BUDGET, not spent, f"{head}: {'; '.join(parts)}", **known)


GATE = release_gate(error_budget, ErrorBudgetPolicy, "error_budget", find=find, shown=False)
