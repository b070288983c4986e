"""Service levels of a workspace with the lineage of its runs: what the gate, the asset and `plinth ops sli` show.

The indicators are `plinth.operation.indicators`; which runs and assets there are, `plinth.operation.objectives`.
"""

from __future__ import annotations

from plinth.compute.context import Context
from plinth.errors import IntegrityError, LineageError, MissingError
from plinth.operation import objectives
from plinth.operation.indicators import ErrorBudget, Objectives, Tally, budgets
from plinth.operation.objectives import Complete
from plinth.provenance.statements import chain
from plinth.training.config import RunConfig


def tallies(ctx: Context, wanted: Objectives, until: float) -> list[Tally]:
    """Good and all seconds of every indicator, as things stood at a time (Unix seconds).

    Raises:
        IntegrityError, TrainingError, StorageError: as `objectives.tallies`.
    """
    return objectives.tallies(ctx, wanted, until, completeness(ctx))


def measure(ctx: Context, wanted: Objectives, until: float) -> list[ErrorBudget]:
    """Error budgets of the window that ends at a time (Unix seconds).

    Raises:
        IntegrityError, TrainingError, StorageError: as `objectives.tallies`.
    """
    return budgets(tallies(ctx, wanted, until), wanted, until)


def completeness(ctx: Context) -> Complete:
    """Whether every manifest from a run's mixture down to the inventories of its sources is here and unchanged; each
    mixture is walked once."""
    known: dict[str, bool] = {}

    def complete(config: RunConfig) -> bool:
        if config.mixture not in known:
            try:
                known[config.mixture] = bool(chain(ctx.refs, ctx.refs.load(config.mixture)).sources)
            except (LineageError, MissingError, IntegrityError):
                known[config.mixture] = False
        return known[config.mixture]

    return complete
