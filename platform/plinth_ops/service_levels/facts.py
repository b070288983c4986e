"""Facts from which indicators are computed, as they stood at a time: of one run, and of the assets of a workspace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plinth.training.telemetry.goodput.account import GoodputAccount
from plinth.training.telemetry.goodput.ledger import AttemptTime, TimeSpan
from plinth.training.telemetry.timeline import JOB_ENDS

Event = Mapping[str, Any]



@dataclass(frozen=True)
class RunFacts:
    """One run.

    Args:
        run: its name.
        events: of its timeline, in order, up to `until`.
        ranks: of a job that has not said how many it holds.
        until: Unix seconds.
        silence_s: without an event, after which a job has been killed.
        price: of a rank for an hour; 0: not known.
        samples: of its devices, in order, up to `until`.
        fine_tunes: whether it began from weights.
        complete: whether its data is known down to the sources; None: nobody looked.
    """

    run: str
    events: Sequence[Event]
    ranks: int
    until: float
    silence_s: float = 7200.0
    price: float = 0.0
    samples: Sequence[Event] = ()
    fine_tunes: bool = False
    complete: bool | None = None

    @cached_property
    def _account(self) -> GoodputAccount:
        taken = GoodputAccount(self.ranks)
        for event in self.events:
            taken.add(event)
        return taken

    @cached_property
    def attempts(self) -> tuple[AttemptTime, ...]:
        """Its attempts."""
        return self._account.ledger().attempts

    @cached_property
    def spans(self) -> list[list[TimeSpan]]:
        """Of each attempt its time in order, without the queue."""
        found: list[list[TimeSpan]] = [[] for _ in self.attempts]
        for span in self._account.spans():
            if span.cause != "queue":
                found[span.attempt].append(span)
        return found

    @cached_property
    def inside(self) -> list[list[Event]]:
        """The events of each attempt. The next job's queue begins when the last has ended: that event is the earlier
        attempt's."""
        begins = [one.begin for one in self.attempts]
        found: list[list[Event]] = [[] for _ in self.attempts]
        for event in self.events if begins else ():
            found[max(0, bisect_left(begins, float(event["time"])) - 1)].append(event)
        return found

    @property
    def silent(self) -> bool:
        """Whether nothing has been heard for so long that a job under way has been killed."""
        return bool(self.events) and self.until - float(self.events[-1]["time"]) > self.silence_s

    @cached_property
    def lost_jobs(self) -> set[int]:
        """Numbers of the jobs that failed, lost work for good, or were killed: no end before the next, or silence."""
        kinds: dict[int, set[str]] = {}
        for one, its in zip(self.attempts, self.inside, strict=True):
            kinds.setdefault(one.job, set()).update(str(event["event"]) for event in its)
        last = 0 if self.silent else max(kinds, default=0)
        return {job for job, had in kinds.items() if had & {"failed", "lost"} or (job != last and not had & JOB_ENDS)}

    def held(self, number: int) -> tuple[float, float]:
        """Unix seconds between which an attempt held its ranks: after its queue."""
        one = self.attempts[number]
        return one.begin + one.rank_us.get("queue", 0) / one.ranks / 1e6, one.end

    @cached_property
    def tokens(self) -> dict[int, int]:
        """Tokens of each step, over all ranks."""
        through = {int(event["step"]): int(event["tokens"]) for event in self.of("step") if "tokens" in event}
        return {step: n - through.get(step - 1, 0) for step, n in through.items() if step == 1 or step - 1 in through}

    def of(self, kind: str) -> Iterator[Event]:
        """Events of a kind, in order."""
        return (event for event in self.events if event["event"] == kind)


def run_facts(
    run: str, events: Iterable[Event], ranks: int, until: float, silence_s: float = 7200.0, **more: Any
) -> RunFacts:
    """The facts of a run as its timeline stood at a time; `more` as of `RunFacts`."""
    seen = [event for event in events if float(event["time"]) <= until]
    return RunFacts(run, seen, ranks, until, silence_s, **more)


@dataclass(frozen=True)
class AssetFacts:
    """What was checked, published and seen to arrive in a workspace.

    Args:
        events: of the log of assets, in order, up to `until`.
        until: Unix seconds.
    """

    events: Sequence[Event]
    until: float
