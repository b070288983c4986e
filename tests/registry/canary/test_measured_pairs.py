"""Canary and champion are paired document by document, out of signed measurements alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from plinth.compute.context import Context
from plinth.evaluation.comparison import job
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth_registry import attestations
from plinth_registry.canary import judge
from plinth_registry.canary.watch import WHOLE, measured_pairs, observe
from plinth_registry.gates.settings import TrialPolicy
from tests.registry.canary.conftest import DOCUMENTS, documents, measured

GOOD = {"web": 1.0, "code": 0.8}
WORSE = {"web": 1.0, "code": 0.8 * 1.02}


def pairs_of(ctx: Context, two: tuple[Any, Any], least: int = 100) -> Any:
    champion, canary = two
    return measured_pairs(ctx, canary.checkpoint.digest, champion.checkpoint.digest, least)


def test_documents_are_pairs_in_an_order_of_their_names_and_slices_are_guards(ctx: Context, two: Any) -> None:
    evaluations = [measured(two[0], GOOD), measured(two[1], WORSE)]
    found = pairs_of(ctx, two)
    assert [(one.name, one.role, one.place) for one in found.streams] == [
        (WHOLE, "measured", 1),
        (f"{WHOLE}: bucket code", "guard", 3),
        (f"{WHOLE}: bucket web", "guard", 5),
    ]
    assert found.manifests == {"evaluation": evaluations[1].digest, "champion evaluation": evaluations[0].digest}
    assert [len(one.values) for one in found.streams] == [2 * DOCUMENTS, DOCUMENTS, DOCUMENTS]
    ours, theirs = documents(WORSE), documents(GOOD)
    wanted = [tuple(pc.divide(side["model_bits"], side["bytes"]).to_pylist()) for side in (ours, theirs)]
    assert sorted(found.streams[0].values) == sorted(zip(*wanted, strict=True))
    assert found.streams[0].values != sorted(found.streams[0].values)
    assert pairs_of(ctx, two) == found


def test_a_comparison_with_this_champion_is_taken_and_one_with_another_is_not(ctx: Context, two: Any) -> None:
    champion, canary = two
    sides = [MeasuredModel(one.checkpoint, {"evaluation": measured(one, bits)})
             for one, bits in ((canary, WORSE), (champion, GOOD))]  # fmt: skip
    alone = pairs_of(ctx, two)
    made = job.run(ctx, *sides)
    ctx.refs.save(made)
    attestations.attest_measurement(ctx, canary.recipe, canary.checkpoint.digest, made)
    found = pairs_of(ctx, two)
    assert found.manifests == {"comparison": made.digest}
    assert found.streams == alone.streams
    other = measured_pairs(ctx, canary.checkpoint.digest, "f" * 64, 100)
    assert (other.streams, other.manifests) == ((), {})


@pytest.mark.parametrize("side", [0, 1])
def test_what_the_evaluator_has_not_signed_for_is_no_evidence(ctx: Context, two: Any, side: int) -> None:
    """The signed evaluation of a `Line` has no documents; one with documents is added without a signature."""
    for at, bits in enumerate((GOOD, WORSE)):
        measured(two[at], bits, signed=at != side)
    assert pairs_of(ctx, two).streams == ()
    assert "cannot be paired" in pairs_of(ctx, two).missing


def test_small_streams_are_listed_and_other_text_is_named(ctx: Context, two: Any) -> None:
    measured(two[0], GOOD, 60)
    measured(two[1], WORSE, 60)
    found = pairs_of(ctx, two)
    assert [one.name for one in found.streams] == [WHOLE]
    assert found.small == (f"{WHOLE}: bucket code (60)", f"{WHOLE}: bucket web (60)")
    measured(two[1], {"prose": 1.0, "text": 2.0}, 60)
    assert pairs_of(ctx, two).streams == ()


def test_a_regression_of_2_percent_on_one_slice_gives_back_and_names_the_slice(ctx: Context, two: Any) -> None:
    measured(two[0], GOOD)
    measured(two[1], WORSE)
    found = observe(ctx, two[0].recipe)
    assert found is not None
    status = found.status
    assert (status.canary, status.champion, status.trial.decision) == ("2", "1", "return")
    assert f"{WHOLE}: bucket code: worse than the margin after {DOCUMENTS}" in status.trial.reason
    assert "bucket web" not in status.trial.reason
    assert status.next == "will be withdrawn"


def test_without_a_canary_or_champion_nothing_is_observed(
    ctx: Context, make_line: Any, released: Callable[..., None]
) -> None:
    first = make_line(1)
    assert observe(ctx, first.recipe) is None
    released(first, "canary", "1")
    found = observe(ctx, first.recipe)
    assert found is not None
    assert (found.streams, found.status.trial.decision) == ((), "continue")
    assert found.status.missing == "there is no champion"
    assert "by hand" in found.status.next


def test_a_canary_no_worse_may_become_champion(ctx: Context, two: Any) -> None:
    measured(two[0], GOOD)
    measured(two[1], {"web": 0.97, "code": 0.78})
    found = observe(ctx, two[0].recipe)
    assert found is not None
    assert found.status.trial.decision == "promote"
    assert "plinth release promote" in found.status.next


def probed(line: Any, accuracy: float) -> None:
    """A probe of 200 templates with two items each, which are right with that chance: the same for the same one."""
    rng, rows = np.random.default_rng(round(1000 * accuracy)), []
    for template in range(200):
        for item in range(2):
            right = float(rng.random() < accuracy)
            known = {"probe": "maths", "item": f"{template}/{item}", "template": f"t{template}", "centred": right - 0.5}
            rows.append(known | {"bits": 10.0 + template % 7, "bytes": 5})
    part = write_table(line.ctx.store, "items.parquet", pa.Table.from_pylist(rows))
    inputs = {"checkpoint": line.checkpoint.digest}
    made = Manifest(asset="probes", step="probes", version="1", params={}, inputs=inputs, parts=(part,), stats={})
    line.ctx.refs.save(made)
    attestations.attest_measurement(line.ctx, line.recipe, line.checkpoint.digest, made)


@pytest.mark.parametrize(("accuracy", "decision"), [(0.3, "return"), (0.9, "promote"), (0.6, "promote")])
def test_a_probe_is_a_pair_a_template_and_more_right_answers_are_better(
    ctx: Context, two: Any, accuracy: float, decision: str
) -> None:
    for line, share in zip(two, (0.6, accuracy), strict=True):
        measured(line, GOOD, 60)
        probed(line, share)
    found = pairs_of(ctx, two)
    assert [(one.name, one.role, len(one.values)) for one in found.streams[1:]] == [
        ("probe maths: accuracy above chance", "guard", 200),
        ("probe maths: bits per byte", "guard", 200),
    ]
    judged = judge(TrialPolicy(), found.streams).streams[1]
    assert judged.decision == decision
