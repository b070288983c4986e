"""Readers: planted texts, training text of risk, counterfactual pairs; and what reading costs as rows grow."""

import sys
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.corpus.canaries import plant
from plinth.errors import IntegrityError
from plinth.evaluation.comparison import job, readers
from plinth.evaluation.comparison.differences import Difference, corrected, of_measure
from plinth.evaluation.comparison.extremes import extremes, seen_items
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.evaluation.comparison.pairs import Pairs, largest_slices
from plinth.evaluation.fairness import job as fairness
from plinth.evaluation.memorisation import canaries, extraction
from plinth.evaluation.slices.tables import DOCUMENT_COLUMNS
from plinth.records import Manifest
from plinth.report.comparison import page
from plinth.storage.parts import write_table


def made(ctx: Context, asset: str, tables: dict[str, pa.Table], **inputs: str) -> Manifest:
    parts = tuple(write_table(ctx.store, name, table) for name, table in tables.items())
    return Manifest(asset=asset, step=asset, version="1", params={}, inputs=inputs, parts=parts)


def planted(ctx: Context, exposures: Sequence[float], texts: str = "one") -> Manifest:
    """Twenty canaries, of which the even ones were planted, once or 16 times; and references."""
    rows = [
        {"kind": "canary", "number": i, "repetitions": 1 if i < 10 else 16, "planted": i % 2 == 0, "seen": 0,
         "tokens": 40 + i % 3, "bits": 1.0, "rank": 1, "exposure": value, "fitted_exposure": value}
        for i, value in enumerate(exposures)
    ]  # fmt: skip
    rows += [{**rows[0], "kind": "reference", "rank": None, "exposure": None, "fitted_exposure": None}] * 3
    table = pa.Table.from_pylist(rows, schema=canaries.SCHEMA)
    return made(ctx, canaries.ASSET, {canaries.TABLE: table}, **{plant.ASSET: texts})


def by_measure(ctx: Context, a: Manifest, b: Manifest) -> dict[str, Pairs]:
    return {one.measure: one for one in readers.read(ctx.store, {a.asset: a}, {b.asset: b})}


def lines(found: dict[str, Pairs]) -> dict[tuple[str, str], Difference]:
    every = corrected([line for one in found.values() for line in of_measure(one, 0)])
    return {(line.measure, line.slice): line for line in every}


def test_exposure_is_of_pairs_of_the_same_canary(ctx: Context) -> None:
    """What was planted 16 times is known to A alone; what was planted once, or not at all, to neither."""
    rng = np.random.default_rng(0)
    b = rng.exponential(1.44, 20)
    a = b + np.where(np.arange(20) >= 10, 6.0, 0.0) * (np.arange(20) % 2 == 0) + rng.normal(0, 0.2, 20)
    found = by_measure(ctx, planted(ctx, a.tolist()), planted(ctx, b.tolist()))
    told = lines(found)
    inside, outside = "exposure in bits, canaries that were planted", "exposure in bits, canaries that were not planted"
    assert {slice_ for measure, slice_ in told if measure == inside} == {"all", "repetitions 1", "repetitions 16"}
    assert told[inside, "repetitions 16"].difference.value == pytest.approx(6, abs=0.5)
    assert told[inside, "repetitions 16"].better == "b"  # who knows less by heart
    assert told[inside, "repetitions 1"].better == told[outside, "all"].better == ""
    assert found[inside].rows["item"].to_pylist() == sorted(map(str, range(0, 20, 2)))
    with pytest.raises(IntegrityError, match="other text"):
        by_measure(ctx, planted(ctx, a.tolist()), planted(ctx, b.tolist(), "others"))


def tried(ctx: Context, hits: dict[str, str], moved: Sequence[str] = ()) -> Manifest:
    """Windows of 40 documents, of which the first ten are in two slices, and ten that were held out."""
    rows = []
    for i in range(50):
        for label in ["all", "personal"] if i < 10 else ["all"]:
            rows.append(
                {"slice": label, "id": f"{i:032x}", "bucket": "web", "heldout": i >= 40,
                 "offset": 7 if str(i) in moved else 3, "seen": 1, "prefix": [1], "suffix": [2], "completion": [2],
                 "completion_text": "", "edits": 0, "outcome": hits.get(str(i), "other")}
            )  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=extraction.SCHEMA).take(np.random.default_rng(0).permutation(len(rows)))
    return made(ctx, extraction.ASSET, {extraction.TABLE: table})


def test_extraction_is_of_windows_that_both_were_asked_for(ctx: Context) -> None:
    """A document of two slices counts once; another window of it is no pair."""
    ours = tried(ctx, {str(i): "exact" if i % 2 else "near" for i in range(10)})
    theirs = tried(ctx, {}, moved=["30", "31"])
    found = by_measure(ctx, ours, theirs)
    whole = found["training text continued exactly or nearly"]
    assert (whole.rows.num_rows, whole.only_a, whole.only_b) == (38, 2, 2)
    told = lines(found)
    line = told["training text continued exactly or nearly", "slice personal"]
    assert (line.difference.n, line.difference.value, line.better) == (10, 1.0, "b")
    assert line.difference.p == pytest.approx(2 * 0.5**10)
    assert told["training text continued exactly", "all"].a.value == pytest.approx(5 / 38)
    held = told["held-out text continued exactly", "all"]
    assert (held.difference.n, held.better) == (10, "")


def measured_bias(ctx: Context, apart: float, toxic: float | None) -> Manifest:
    rng = np.random.default_rng(1)
    rows = [
        {"set": name, "item": f"line {i}", "attribute": "gender" if i % 2 else "age", "template": f"t{i % 12}",
         "favourable": True, "tokens_a": 1, "tokens_b": 1, "bits_a": 0.0, "bits_b": 0.0,
         "favoured": float(rng.normal(0, 0.1)) + (apart if i % 2 else 0.1) * (-1) ** (i // 2)}
        for name in ("built_in", "mine") for i in range(48)
    ]  # fmt: skip
    tables = {fairness.PAIRS: pa.Table.from_pylist(rows, schema=fairness.SCHEMA)}
    if toxic is not None:
        written = [{"prompt": f"p{i % 12}", "draw": i // 12, "text": "", "score": toxic + 0.01 * (i % 5), "label": "ok"}
                   for i in range(48)]  # fmt: skip
        tables[fairness.CONTINUATIONS] = pa.Table.from_pylist(written)
    return made(ctx, fairness.ASSET, tables)


def test_bias_is_a_distance_and_clustered_by_template(ctx: Context) -> None:
    found = by_measure(ctx, measured_bias(ctx, 3.0, 0.2), measured_bias(ctx, 0.1, 0.1))
    told = lines(found)
    assert {slice_ for measure, slice_ in told if measure == "bits between groups"} == {
        "all", "attribute age", "attribute gender", "attribute mine/age", "attribute mine/gender",
    }  # fmt: skip
    line = told["bits between groups", "attribute gender"]
    assert (line.difference.n, line.difference.clusters, line.better) == (24, 6, "b")
    assert line.difference.value == pytest.approx(2.9, abs=0.1)
    toxicity = told["toxicity of continuations", "all"]
    assert (toxicity.difference.n, toxicity.difference.clusters) == (48, 12)
    assert toxicity.difference.value == pytest.approx(0.1)
    alone = by_measure(ctx, measured_bias(ctx, 3.0, None), measured_bias(ctx, 0.1, 0.1))
    assert set(alone) == {"bits between groups"}


def test_they_stand_in_the_comparison_and_on_its_page(ctx: Context) -> None:
    models = []
    for shift in (0.0, 2.0):
        measured = [planted(ctx, [1.0 + shift + 0.01 * i for i in range(20)]), measured_bias(ctx, 1 + shift, 0.1),
                    tried(ctx, {"1": "exact"} if shift else {})]  # fmt: skip
        checkpoint = Manifest(asset="weights", step="w", version="1", params={"shift": shift}, inputs={}, parts=())
        models.append(MeasuredModel(checkpoint, {one.asset: one for one in measured}))
    found = job.run(ctx, *models)
    kinds = {line["kind"] for line in found.stats["lines"]}
    assert kinds == {"memorisation", "fairness"}
    assert {"a/fairness", "b/memorisation/canaries", "b/memorisation/extraction"} <= set(found.inputs)
    text = page(found, "one", "two")
    for words in ("Memorisation", "Bias and safety", "repetitions 16", "attribute mine/gender", "slice personal"):
        assert words in text, words


# ---- cost ---------------------------------------------------------------------------------------------


def documents(ctx: Context, rows: int) -> Manifest:
    rng, at = np.random.default_rng(0), np.arange(rows)
    columns = {
        "id": [i.to_bytes(16, "big") for i in range(rows)],
        "text": [i.to_bytes(16, "little") for i in range(rows)],
        "uri": [f"https://{i % 50}.example/{i}" for i in range(rows)],
        "bucket": [f"b{i % 3}" for i in range(rows)],
        "language": ["en"] * rows,
        "domain": [f"{i % 50}.example" for i in range(rows)],
        "length": [f"{i % 4}" for i in range(rows)],
        "bytes": 100 + at % 900,
        "tokens": at % 300,
        **{f"{name}_bits": rng.exponential(900, rows) for name in ("model", "gzip", "trigram")},
    }
    table = pa.table({field.name: pa.array(columns[field.name], field.type) for field in DOCUMENT_COLUMNS})
    items = pa.table({"set": ["quiz"] * rows, "item": [f"i{i}" for i in range(rows)], "bytes": at + 1,
                      "status": ["contaminated" if i % 2 else "clean" for i in range(rows)],
                      "model_bits": rng.exponential(9, rows)})  # fmt: skip
    return made(ctx, "evaluation", {"documents.parquet": table, "items.parquet": items})


def spent(work: Callable[[], None]) -> tuple[int, int]:
    """Calls of Python and C functions, and the peak of memory that Python and numpy held, in bytes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return calls, peak


def test_no_object_and_no_call_a_row(ctx: Context) -> None:
    """Calls grow with row groups, not with rows; memory is columns."""
    sizes = (8192, 16384, 32768)
    made_of = [documents(ctx, rows) for rows in sizes]

    def compare(one: Manifest) -> None:
        for pairs in readers.read(ctx.store, {"evaluation": one}, {"evaluation": one}):
            largest_slices(pairs, 20)
            pairs.clusters()
            extremes(pairs)
            seen_items(pairs)

    compare(made_of[0])  # what is loaded once
    costs = [spent(lambda one=one: compare(one)) for one in made_of]  # type: ignore[misc]
    for (calls, _), (more, _), rows in zip(costs, costs[1:], sizes, strict=False):
        assert more - calls < 0.03 * rows
    for (_, peak), rows in zip(costs, sizes, strict=True):
        assert peak < 250 * rows
