"""Throughput: steps that take much longer than they did.

A clock is no function of the data, so nothing of this enters a checkpoint and it may only warn or stop. The
seconds are the mean over ranks, which all ranks share, so they warn and stop together.
"""

from __future__ import annotations

from plinth.training.guard.records import Intervention
from plinth.training.guard.rolling import Rolling
from plinth.training.parameters.guard import Throughput

#: Steps of a process that are not judged: kernels are chosen and compiled, caches are cold.
WARM_UP = 10


class ThroughputRule:
    """Judges the seconds of every step, by token: batches may grow."""

    def __init__(self, policy: Throughput, window_steps: int) -> None:
        self.policy, self._window = policy, Rolling(window_steps)
        self._seen = self._streak = 0

    def record(self, step: int, tokens: int, seconds: float) -> list[Intervention]:
        """Judge a step; the interventions it leads to."""
        self._seen += 1
        if self.policy.action == "off" or self._seen <= WARM_UP or seconds <= 0:
            return []
        rate, slow = tokens / seconds, False
        if len(self._window) >= WARM_UP:
            slow = rate < self.policy.ratio * self._window.level
        self._streak = self._streak + 1 if slow else 0
        bound = self.policy.ratio * self._window.level if slow else 0.0
        self._window.add(rate)
        if self._streak != self.policy.confirmations:
            return []
        first = step - self._streak + 1
        return [
            Intervention(
                step=step,
                rule="throughput",
                action=self.policy.action,
                value=rate,
                threshold=bound,
                first=first,
                last=step,
            )
        ]
