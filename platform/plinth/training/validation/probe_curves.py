"""Probe scores over a run, without torch: their noise, the probes that may end a run, the scores stored with
checkpoints, and the scores of the same probes in runs with other seeds.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth import fingerprint
from plinth.errors import LineageError
from plinth.evaluation.probes.noise import LAST, Worth, worth
from plinth.training.config import UNIDENTIFIED, RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import read_events

# Probe scores over a run: the noise of the curve, and probes that may decide.
#
# The event of an evaluation has, by probe, bits per byte of the correct answers (`score`), the same under the control
# (`control`), and the digest of the items (`set`). Pure functions of the timeline; no torch.
#
# Does not belong here: the arithmetic (evaluation.probes), the evaluation itself (validation).

#: Minimum scores for removing a linear trend.
FIT = 4


class ProbeLook(NamedTuple):
    """Scores of one probe at one evaluation during training."""

    step: int
    tokens: int
    score: float  # bits per byte
    control: float
    items: str = ""  # digest of the items

    @property
    def signal(self) -> float:
        """Bits per byte that the model saves because it uses the context."""
        return self.control - self.score


class ProbeCurves:
    """Scores by probe, read from a growing timeline.

    If a step is repeated, the later scores are valid. If the items change, scores of other items are dropped.
    """

    def __init__(self) -> None:
        self.looks: dict[str, list[ProbeLook]] = {}
        self._set = ""

    def require_set(self, items: str) -> None:
        """Set the digest of the items to which the existing scores belong."""
        self._set = items

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the scores in an event. Events without probes are ignored."""
        if event["event"] != "evaluated" or not event.get("probes"):
            return
        if event["probe_set"] != self._set:
            self._set, self.looks = event["probe_set"], {}
        step, tokens = int(event["step"]), int(event["tokens"])
        for name, scores in event["probes"].items():
            kept = [look for look in self.looks.get(name, ()) if look.step < step]
            self.looks[name] = [*kept, ProbeLook(step, tokens, scores["score"], scores["control"], self._set)]


def curves(events: Iterable[Mapping[str, Any]]) -> dict[str, list[ProbeLook]]:
    """Return the scores of each probe in a timeline's events, in order."""
    found = ProbeCurves()
    for event in events:
        found.add(event)
    return found.looks


def value(looks: Sequence[ProbeLook], seeds: Sequence[float] = ()) -> Worth:
    """Return the worth of a probe at its last evaluation. The noise of a curve is measured without its local slope.

    Args:
        looks: scores of one run, in order; at least one score.
        seeds: last scores of runs that differ only by seed, including this run.
    """
    return worth(looks[-1].signal, detrended(looks[-LAST:]), seeds)


def detrended(looks: Sequence[ProbeLook]) -> list[float]:
    """Return the scores without their linear trend over tokens; their mean does not change.

    Deviations are multiplied by sqrt((n - 1) / (n - 2)), because the line costs a degree of freedom. Their standard
    deviation is then the residual standard error of the fit. Fewer than `FIT` scores are not changed. A slope then
    counts as noise, which makes the signal-to-noise ratio too low rather than too high.
    """
    scores = [look.score for look in looks]
    n = len(looks)
    if n < FIT:
        return scores
    middle, mean = math.fsum(look.tokens for look in looks) / n, math.fsum(scores) / n
    spread = math.fsum((look.tokens - middle) ** 2 for look in looks)
    slope = math.fsum((look.tokens - middle) * (look.score - mean) for look in looks) / spread
    widened = math.sqrt((n - 1) / (n - 2))
    return [mean + widened * (look.score - mean - slope * (look.tokens - middle)) for look in looks]


# Latest probe scores, kept with each checkpoint: a probe's worth is computed from them.
#
#     checkpoints/step-00000100/looks.json    latest scores by probe, up to this step
#
# The timeline is not signed; a checkpoint's files are. So a score is read from the timeline once, by the next commit,
# and from then on from the previous checkpoint: later changes of the timeline have no effect.

#: File of a checkpoint with the scores.
LOOKS: Final = "looks.json"

Looks = Mapping[str, list[ProbeLook]]


def kept(before: bytes | None, after: int, events: Path, step: int) -> bytes | None:
    """Return the content of the scores file for a checkpoint, or None if there are no scores.

    Args:
        before: verified content of the scores file in an earlier checkpoint, or None if there is none.
        after: step of that checkpoint, or 0 if there is none.
        events: the timeline.
        step: step of the checkpoint to be committed.
    """
    curves = ProbeCurves()
    if before is not None:
        curves.looks = {name: list(own) for name, own in read(before).items()}
        curves.require_set(next((own[-1].items for own in curves.looks.values() if own), ""))
    for event in _evaluated(events):
        if after < event["step"] <= step:
            curves.add(event)
    found = {name: [list(look) for look in own[-LAST:]] for name, own in curves.looks.items() if own}
    return fingerprint.canonical({"looks": found}) if found else None


def read(data: bytes) -> Looks:
    """Return the scores in a scores file by probe, oldest first.

    Raises:
        LineageError: the data is not a scores file.
    """
    try:
        return of(json.loads(data)["looks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LineageError(f"{LOOKS} has no valid probe scores", found=error) from error


def of(content: Mapping[str, Iterable[Iterable[Any]]]) -> dict[str, list[ProbeLook]]:
    """Convert plain data to scores by probe."""
    return {name: [ProbeLook(*look) for look in own] for name, own in content.items()}


def _evaluated(events: Path) -> Iterator[dict[str, Any]]:
    """Yield the events with probe scores from a timeline. Other lines and incomplete lines are skipped without
    parsing."""
    if not events.exists():
        return
    with events.open("rb") as stream:
        for line in stream:
            if b'"evaluated"' in line:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("event") == "evaluated" and isinstance(event.get("step"), int):
                    yield event


# Runs of the workspace that differ by the seed of their initial weights alone: their noise is not visible in one run.

#: Fields that may differ between two runs of one model on one order of data.
_OWN = {"run_id", "key", "recipe", "workspace", "seed", "provenance", "batches", "heldout", "probes", *UNIDENTIFIED}


def over_seeds(config: RunConfig, looks: dict[str, list[ProbeLook]]) -> dict[str, list[float]]:
    """Return, by probe, the scores at the run's last evaluation, of this run and of comparable runs with another seed.

    Comparable runs scored the same items after the same number of tokens. If there are none, return an empty dict.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for run in _others(config):
        for name, own in curves(read_events(run.events)).items():
            ours = looks.get(name)
            found[name] += [one.score for one in own if ours and _same(one, ours[-1])]
    return {name: [looks[name][-1].score, *others] for name, others in sorted(found.items()) if others}


def _same(one: ProbeLook, other: ProbeLook) -> bool:
    return (one.tokens, one.items) == (other.tokens, other.items)


def _others(config: RunConfig) -> Iterator[RunDirectory]:
    wanted = _digest(config.model_dump(mode="json"))
    for path in sorted(config.directory.root.parent.glob("*/config.json")):
        fields = json.loads(path.read_bytes())
        if fields.get("run_id") != config.run_id and _digest(fields) == wanted and fields["seed"] != config.seed:
            yield RunDirectory(path.parent)


def _digest(fields: dict[str, Any]) -> str:
    return fingerprint.digest({name: value for name, value in fields.items() if name not in _OWN})
