"""Risk that a text is not the main content of its page: the chance that a reader finds foreign text in it, or misses a
third of it, by a logistic model whose weights are in `risk.json` (`tests/benchmarks/learn_risk.py`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

WEIGHTS = Path(__file__).with_name("risk.json")
#: Traits that the kernel reads, in the order of `risk.h`.
TRAITS = ("teasers", "calls_at_end", "speech", "we")
#: Doubt counts up to this limit.
MOST_DOUBT = 0.5
NAMES = ("bias", "doubt", *TRAITS)


def inputs(unsure: float, traits: Sequence[float]) -> list[float]:
    """Return the values of `NAMES`."""
    return [1.0, min(unsure, MOST_DOUBT), *traits]


def risk_of(unsure: float, traits: Sequence[float]) -> float:
    """Return the risk of a text, by the doubt about it and its traits."""
    score = math.fsum(weight * value for weight, value in zip(_weights(), inputs(unsure, traits), strict=True))
    return 1 / (1 + math.exp(-score))


@cache
def _weights() -> tuple[float, ...]:
    found = json.loads(WEIGHTS.read_text())
    return tuple(found[name] for name in NAMES)
