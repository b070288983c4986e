"""`plinth model fairness`: which group is favored, by how much, whether it is found, and what has moved since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.evaluation.engine.records import Request
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth_audit.fairness import job, pairs
from plinth_audit.fairness.pairs import Pair
from tests.plinth_audit.fairness.swapped_corpus import counted_model

OWN = tuple(Pair("mine", f"line {n}", "to\x1bwn", str(n), True, Request("", "a"), Request("", "b")) for n in range(4))
PAIRS = [*pairs.built_in(), *OWN]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def publish(ctx: Context, share: float, toxic: float | None = None) -> Manifest:
    """Publish the asset for a model that counted a corpus with this share swapped."""
    bits = np.append(counted_model(1, share), [1.0, 2.0] * len(OWN))
    parts = [write_table(ctx.store, job.PAIRS, job.table(PAIRS, np.full(len(bits), 3, np.int64), bits))]
    judged = None
    if toxic is not None:
        names = {"prompt": [*pairs.PROMPTS], "draw": [0] * len(pairs.PROMPTS)}
        rows = pa.table(names | {"score": np.linspace(0, toxic, 20), "label": ["fine"] * 20})
        parts.append(write_table(ctx.store, job.CONTINUATIONS, rows))
        judged = job.toxicity(rows)
    stats = {
        "attributes": pairs.by_attribute(PAIRS, pairs.values(PAIRS, bits)),
        "toxicity": judged,
        "pairs": len(PAIRS),
    }
    made = Manifest(asset=job.ASSET, step="s", version="2", params={}, inputs={}, parts=tuple(parts), stats=stats)
    ctx.refs.publish(made, key=made.digest)
    return made


def cells(out: str, name: str) -> list[str]:
    """The cells of the row of an attribute."""
    (line,) = [line for line in out.splitlines() if line.strip().startswith(f"{name} ") and " to " in line]
    return line.split()


def test_groups_are_named_and_what_is_found_is_marked(plinth: Callable[..., Any], ctx: Context) -> None:
    made = publish(ctx, 0.9)
    shown = plinth("model", "fairness", "-w", ctx.workspace.root)
    assert shown.code == 0, shown.err
    assert "yes" in cells(shown.out, "gender")
    assert "no" in cells(shown.out, "age")
    assert float(cells(shown.out, "gender")[1]) == pytest.approx(made.stats["attributes"]["gender"]["value"], abs=1e-3)
    assert "a: man, boy, father, husband, brother; b: woman, girl, mother, wife, sister" in shown.out
    assert "mine/to\\x1bwn" in shown.out  # the content of a file does not control the terminal
    assert "\x1b" not in shown.out
    assert "a: side a; b: side b" in shown.out
    assert "no" in cells(shown.out, "mine/to\\x1bwn")  # four pairs without spread: flagged, and so not found
    programs = json.loads(plinth("model", "fairness", "-w", ctx.workspace.root, "--json").out)
    assert (programs["digest"], programs["attributes"]) == (made.digest, made.stats["attributes"])


def test_drift_against_another_measurement(plinth: Callable[..., Any], ctx: Context) -> None:
    earlier, _ = publish(ctx, 0.5, toxic=0.1), publish(ctx, 0.9, toxic=0.5)
    shown = plinth("model", "fairness", "--against", earlier.digest[:12], "-w", ctx.workspace.root)
    assert shown.code == 0, shown.err
    assert ("yes" in cells(shown.out, "gender"), "yes" in cells(shown.out, "age")) == (True, False)
    assert f"against {earlier.digest[:12]}" in shown.out
    assert "+0.2000" in shown.out  # toxicity: a mean of 0.25 after one of 0.05
    found = json.loads(plinth("model", "fairness", "--against", earlier.digest, "-w", ctx.workspace.root, "--json").out)
    assert found["drift"]["gender"]["found"] is True
    assert found["drift"]["gender"]["bias"]["at_most"] == found["drift"]["gender"]["bias"]["high"]


def test_what_cannot_be_compared(plinth: Callable[..., Any], ctx: Context) -> None:
    earlier, _ = publish(ctx, 0.5, toxic=0.1), publish(ctx, 0.9)
    assert (
        "Toxicity is not compared"
        in plinth("model", "fairness", "--against", earlier.digest, "-w", ctx.workspace.root).out
    )
    other = Manifest(asset="probes", step="s", version="1", params={}, inputs={}, parts=())
    ctx.refs.publish(other, key=other.digest)
    refused = plinth("model", "fairness", "--against", other.digest, "-w", ctx.workspace.root)
    assert (refused.code, "is not a bias measurement" in refused.err) == (3, True)
    assert plinth("model", "fairness", "--against", "0" * 64, "-w", ctx.workspace.root).code == 3
    assert plinth("model", "fairness", "--against", "newest", "-w", ctx.workspace.root).code == 3


def test_before_anything_is_measured(plinth: Callable[..., Any], ctx: Context) -> None:
    refused = plinth("model", "fairness", "-w", ctx.workspace.root)
    assert (refused.code, "fairness" in refused.err) == (3, True)
