"""Every indicator: its name, the unit of its seconds, the measure that stands beside them, and its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from plinth.operation.indicators import attempts, marks, publications, steps
from plinth.operation.indicators.facts import AssetFacts, RunFacts
from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.tallies import Tally

OfRun = Callable[[RunFacts, Objectives], Iterable[Tally]]
OfAssets = Callable[[AssetFacts, Objectives], Iterable[Tally]]


class Indicator(NamedTuple):
    """One indicator; it is of runs, or of assets.

    Args:
        unit: of its seconds.
        measured_in: the measure, which is a mean where tallies have weights, and else the largest; empty: none.
    """

    unit: str
    measured_in: str = ""
    of_run: OfRun | None = None
    of_assets: OfAssets | None = None


INDICATORS: Final[Mapping[str, Indicator]] = MappingProxyType(
    {
        "job success": Indicator("rank-s", of_run=attempts.job_success),
        "goodput": Indicator("rank-s", of_run=steps.goodput),
        "checkpoint age": Indicator("rank-s", of_run=marks.checkpoint_age),
        "checkpoint frequency": Indicator("rank-s", "s between checkpoints on average", marks.checkpoint_frequency),
        "restore time": Indicator("rank-s", of_run=steps.restore_time),
        "validation trend": Indicator("rank-s", "bits per byte above the best look, at most", marks.validation_trend),
        "device utilisation": Indicator("device-s", of_run=steps.device_utilisation),
        "cost per token": Indicator("rank-s", "money per million tokens", steps.cost_per_token),
        "lineage completeness": Indicator("rank-s", of_run=attempts.lineage_completeness),
        "reproducibility delta": Indicator("rank-s", "relative difference, at most", attempts.reproducibility_delta),
        "time to fine-tune": Indicator("run-s", "hours, at most", attempts.time_to_fine_tune),
        "suite pass rate": Indicator("suite-s", of_assets=publications.suite_pass_rate),
        "ingestion lag": Indicator("bucket-s", "s, at most", of_assets=publications.ingestion_lag),
    }
)


def of_run(facts: RunFacts, objectives: Objectives) -> list[Tally]:
    """Tallies of a run, of every indicator of runs."""
    made = [one for row in INDICATORS.values() if row.of_run for one in row.of_run(facts, objectives)]
    return [one for one in made if one.total_us or one.measured]


def of_assets(facts: AssetFacts, objectives: Objectives) -> list[Tally]:
    """Tallies of the assets of a workspace, of every indicator of assets."""
    made = [one for row in INDICATORS.values() if row.of_assets for one in row.of_assets(facts, objectives)]
    return [one for one in made if one.total_us]
