"""Indicators of attempts as a whole: job success, lineage completeness, reproducibility delta, time to fine-tune."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plinth.operation.indicators.facts import RunFacts
from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.tallies import Tally, up_to, whole


def job_success(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """All seconds of a job that failed, lost a node or was killed are bad; one that restarted itself is good."""
    for number, one in enumerate(run.attempts):
        yield whole("job success", run.run, *run.held(number), one.job not in run.lost_jobs, one.ranks)


def lineage_completeness(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Seconds of a run whose data is not known down to its sources are bad."""
    if run.complete is None:
        return
    for number, one in enumerate(run.attempts):
        yield whole("lineage completeness", run.run, *run.held(number), run.complete, one.ranks)


def reproducibility_delta(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Of a run that was replayed, all seconds are as good as its last replay."""
    last = max(run.of("audited"), key=lambda event: float(event["time"]), default=None)
    if last is None:
        return
    delta = 0.0 if last["bit_exact"] else float(last.get("delta", math.inf))  # earlier versions did not state it
    for number, one in enumerate(run.attempts):
        good = delta <= objectives.reproducibility_bound
        made = whole("reproducibility delta", run.run, *run.held(number), good, one.ranks)
        yield made._replace(measured=delta)


def time_to_fine_tune(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Seconds from the submission of a run that began from weights until it has finished, or is given up."""
    if not run.fine_tunes or not run.events:
        return
    begin, last = float(run.events[0]["time"]), run.events[-1]
    done = next((float(event["time"]) for event in run.of("finished")), None)
    given_up = run.silent or last["event"] == "failed"
    end = done if done is not None else float(last["time"]) if given_up else run.until
    for made in up_to("time to fine-tune", run.run, begin, end, objectives.fine_tune_s):
        yield made._replace(measured=(end - begin) / 3600)
