"""Runs of the workspace that differ from a run by the seed of their initial weights alone: the noise that no number of
looks at one run shows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from plinth import fingerprint
from plinth.training.config import UNIDENTIFIED, RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import read_events
from plinth.training.validation.probe_curves import ProbeLook, curves

#: Fields of a configuration that may differ between two runs of one model on one order of data.
_OWN = {"run_id", "key", "recipe", "workspace", "seed", "provenance", "batches", "heldout", "probes", *UNIDENTIFIED}


def over_seeds(config: RunConfig, looks: dict[str, list[ProbeLook]]) -> dict[str, list[float]]:
    """By probe its score at the run's last look, in this run and in those with another seed that scored the same items
    after as many tokens; empty where there is none."""
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
