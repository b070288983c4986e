"""The share of a device's peak that a run's computation reaches: stated, or as recorded runs reached it."""

from __future__ import annotations

from plinth.records import Frozen


class Efficiency(Frozen):
    """A range, and where it comes from. Without bubble and communication; the optimizer's time on the device in it."""

    low: float
    high: float
    source: str

    @property
    def middle(self) -> float:
        """Of the range; the efficiency of steps that are ranked."""
        return (self.low + self.high) / 2

    def words(self) -> str:
        """One line for people."""
        return f"computation reaches {self.low:.2%} to {self.high:.2%} of the peak ({self.source})"


#: Without a recorded run. Published runs reach 38% to 48%, with bubble and communication in it (docs/planning.md).
STATED = Efficiency(low=0.4, high=0.6, source="stated: no run of such a model on this device is recorded")
