"""Objectives of a workspace: what share of an indicator's seconds has to be good, and what a good second is."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Objectives(Frozen):
    """Shares of seconds that have to be good, over a sliding window, and the bounds of a good second."""

    window_days: float = Field(28.0, gt=0, description="Seconds within so many days count.")
    silence_s: float = Field(7200.0, gt=0, description="Seconds without an event after which a job has been killed.")
    job_success: float = Field(0.95, gt=0, lt=1, description="Of rank-seconds held: by jobs that were not lost.")
    goodput: float = Field(0.90, gt=0, lt=1, description="Of rank-seconds held: by steps that count.")
    goodput_after_s: float = Field(
        3600.0,
        ge=0,
        description="Seconds that jobs must have held ranks before goodput is judged: a short run is mostly start-up.",
        exclude_if=lambda given: given == 3600.0,
    )
    checkpoint_age: float = Field(0.99, gt=0, lt=1, description="Of rank-seconds since a first step: within the bound.")
    checkpoint_age_s: float = Field(3600.0, gt=0, description="Seconds since a checkpoint, or since the first step.")
    checkpoint_frequency: float = Field(
        0.95, gt=0, lt=1, description="Of rank-seconds between checkpoints: of gaps that are within the bound, whole."
    )
    checkpoint_every_s: float = Field(3600.0, gt=0, description="Seconds from a checkpoint to the next.")
    restore_time: float = Field(0.95, gt=0, lt=1, description="Of rank-seconds in restores: within the bound of each.")
    restore_time_s: float = Field(300.0, gt=0, description="Seconds to download, verify and load a checkpoint.")
    validation_trend: float = Field(
        0.95, gt=0, lt=1, description="Of rank-seconds between looks at held-out text: that ended no worse than before."
    )
    validation_rise: float = Field(
        0.02, ge=0, description="Bits per byte by which a look may be above the best one before it."
    )
    suite_pass_rate: float = Field(
        0.99, gt=0, lt=1, description="Of seconds of every asset's suite: since a check that it passed."
    )
    device_utilisation: float = Field(
        0.50,
        gt=0,
        lt=1,
        description="Of device-seconds sampled, busy; without samples, of rank-seconds held, computing.",
    )
    cost_per_token: float = Field(
        0.90, gt=0, lt=1, description="Of rank-seconds paid for: within what the tokens of their steps may cost."
    )
    cost_per_million_tokens: float | None = Field(
        None, gt=0, description="Money that a million tokens may cost; null: the cost is shown without an objective."
    )
    ingestion_lag: float = Field(
        0.95, gt=0, lt=1, description="Of seconds in which new source files waited to be documents: within the bound."
    )
    ingestion_lag_s: float = Field(3600.0, gt=0, description="Seconds from a file's arrival to published documents.")
    lineage_completeness: float = Field(
        0.999, gt=0, lt=1, description="Of rank-seconds held: by runs whose data is known down to its sources."
    )
    reproducibility_delta: float = Field(
        0.95, gt=0, lt=1, description="Of rank-seconds of runs that were replayed: those that agree within the bound."
    )
    reproducibility_bound: float = Field(
        0.01, ge=0, description="Largest relative difference of a replayed step's loss from the recorded one."
    )
    time_to_fine_tune: float = Field(
        0.95, gt=0, lt=1, description="Of seconds of runs that began from weights: within the bound of each."
    )
    fine_tune_s: float = Field(86400.0, gt=0, description="Seconds from a fine-tuning's submission to its end.")

    def minimum_s(self, indicator: str) -> float:
        """Seconds that an indicator must cover before it is judged; fewer say little about it."""
        return self.goodput_after_s if indicator == "goodput" else 0.0

    def target(self, indicator: str) -> float:
        """The share of an indicator's seconds that has to be good."""
        found: float = getattr(self, indicator.replace(" ", "_").replace("-", "_"))
        return found
