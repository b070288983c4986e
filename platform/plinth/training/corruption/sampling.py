"""Sampled steps of a run, the record of their replays in checkpoints, and the bound on corrupt steps that it supports.

Steps after the first are divided into blocks of `interval` steps. In each block one step is sampled, chosen by a hash
of the run's identity, so every step has the same probability and every rank knows the step. The first step is not
sampled, because the optimizer has no state before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from plinth.evaluation.statistics.shares import upper_share
from plinth.records import Frozen
from plinth.text import counted

#: Cost of the replay of a step, in steps: the step itself, the copy and digests of the state, and the exchange of
#: gradients.
REPLAY_STEPS: Final = 1.5

#: Rule of rollbacks to before a step whose replay differed. The guard does not judge it.
CORRUPTION: Final = "corruption"

#: Key of the record in a checkpoint's monitor.
RECORD: Final = "replay_checks"

#: Confidence of the bound on corrupt steps.
LEVEL: Final = 0.95


def interval(share: float) -> int:
    """Return the number of steps per sampled step, so that replays cost at most `share` of the time of the steps."""
    return max(2, math.ceil(REPLAY_STEPS / share))


def is_sampled(key: str, share: float, step: int) -> bool:
    """Return True if a step of the run with identity `key` is sampled."""
    every = interval(share)
    block, position = divmod(step - 2, every)
    return step > 1 and int.from_bytes(hashlib.sha256(f"{key}:{block}".encode()).digest()[:8]) % every == position


def samples(key: str, share: float, steps: int) -> Iterator[int]:
    """Yield the sampled steps of a run of `steps` steps, in order."""
    return (step for step in range(2, steps + 1) if is_sampled(key, share, step))


def trusted(monitor: Mapping[str, Any], committed: Iterable[int]) -> list[int]:
    """Return the newest committed step up to the last equal replay, which a rollback may need; nothing if there is
    none."""
    last = monitor.get(RECORD, {}).get("last", 0)
    return [max(found)] if (found := [step for step in committed if step <= last]) else []


def plan_in_words(key: str, share: float, steps: int) -> str:
    """Return what replays will cost in a run of `steps` steps, and what they will show if all are equal."""
    count = sum(1 for _ in samples(key, share, steps))
    return (
        f"one step of {interval(share):,} is replayed on other devices, for at most {share:.3g} of the time of all "
        f"steps (a replay counts as {REPLAY_STEPS:g} steps); if all {count:,} are equal, corruption of a step is rarer "
        f"than {ReplayRecord(steps=steps, samples=count).bound(steps):.2g} at 95%"
    )


class ReplayRecord(Frozen):
    """Replays of sampled steps up to a checkpoint. The commit record of the checkpoint signs it."""

    steps: int = Field(0, ge=0, description="Number of steps taken with sampling on.")
    samples: int = Field(0, ge=0, description="Number of sampled steps whose replay was equal.")
    mismatches: int = Field(0, ge=0, description="Number of replays that differed; the run was rolled back each time.")
    last: int = Field(0, ge=0, description="Last sampled step whose replay was equal.")
    other_hosts: bool = Field(True, description="True if every replay was computed on another host.")

    @classmethod
    def of(cls, monitor: Mapping[str, Any]) -> ReplayRecord:
        """Return the record in a checkpoint's monitor, with the mismatches that the guard's rollbacks record."""
        record = cls.model_validate(monitor.get(RECORD, {}))
        rules = [made["rule"] for made in monitor["guard"]["rollbacks"]]
        return record.model_copy(update={"mismatches": rules.count(CORRUPTION)})

    def after(self, *, equal: bool = False, step: int = 0, other_hosts: bool = True) -> ReplayRecord:
        """Return the record after one more step, which was sampled if its replay was `equal`."""
        more: dict[str, Any] = {"steps": self.steps + 1}
        if equal:
            hosts = self.other_hosts and other_hosts
            more |= {"samples": self.samples + 1, "last": step, "other_hosts": hosts}
        return self.model_copy(update=more)

    def bound(self, steps: int) -> float:
        """Return the upper limit of the share of corrupt steps in a run of `steps` steps, exact at 95%.

        Mismatches count, although they were undone. Steps that could not be sampled, such as the first, count as
        corrupt.
        """
        replayed, covered = self.samples + self.mismatches, min(self.steps, steps - 1)
        if not replayed or not steps:
            return 1.0
        return 1 - covered / steps * (1 - upper_share(self.mismatches, replayed, level=LEVEL))

    def in_words(self, steps: int) -> str:
        """Return the conclusion for a run of `steps` steps."""
        found = f"{self.mismatches} rolled back" if self.mismatches else "no mismatch"
        where = "another host" if self.other_hosts else "another device of the same host"
        covered = "" if self.steps >= steps else f"; {self.steps:,} of {counted(steps, 'step')} could be sampled"
        return (
            f"{found} in {counted(self.samples + self.mismatches, 'step')} replayed on {where}: corruption of "
            f"a step is rarer than {self.bound(steps):.2g} at 95%{covered}"
        )
