"""One thing of a recipe changes: exactly the predicted steps run again, as the files of the workspace show.

A stage that runs writes the record of its cost, and a task that runs writes blobs and the record of its step. So what
has run is read from files, never from events:

    roots  stages whose own key has changed, stated for each change
    runs   roots, and stages of which an input's reference has moved: no other, and none less
    work   stages in which a task did its work; all others were spared theirs by the step cache
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from plinth.recipe.load import load
from tests.jobs.conftest import RECIPE

pytestmark = pytest.mark.slow

BUCKETS = ("web", "prose", "code")
WATCHED = ("store/files", "records", "manifests", "refs", "costs")


@dataclass(frozen=True)
class Change:
    """What differs from the tiny recipe or its files, and what has to run."""

    name: str
    roots: frozenset[str]
    work: frozenset[str]
    recipe: str = ""
    files: Callable[[Path], object] = lambda folder: None


def _each(kind: str, buckets: tuple[str, ...] = BUCKETS) -> frozenset[str]:
    return frozenset(f"{bucket}/{kind}" for bucket in buckets)


def _threshold(reason: str, drop: str) -> str:
    policies = load(RECIPE).corpus.policies["default"].model_dump(mode="json")
    next(rule for rule in policies["rules"] if rule["reason"] == reason)["drop"] = drop
    return yaml.safe_dump({"corpus": {"policies": {"default": policies}}})
