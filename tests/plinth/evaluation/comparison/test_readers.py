"""Readers: planted texts, training text of risk, counterfactual pairs; and what reading costs as rows grow."""

import sys
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.errors import IntegrityError
from plinth.evaluation.comparison import job
from plinth.evaluation.comparison.differences import Difference, corrected, of_measure
from plinth.evaluation.comparison.job import MeasuredModel, extremes, seen_items
from plinth.evaluation.comparison.pairs import Pairs, align, largest_slices, read
from plinth.evaluation.slices.tables import DOCUMENT_COLUMNS
from plinth.records import Manifest
from plinth.report.evaluation import comparison_page
from plinth.storage.parts import write_table
from plinth_audit.canaries import job as canaries
from plinth_audit.extraction import job as extraction
from plinth_audit.fairness import job as fairness


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
    return made(ctx, canaries.ASSET, {canaries.TABLE: table}, **{planted_canaries.ASSET: texts})


def by_measure(ctx: Context, a: Manifest, b: Manifest) -> dict[str, Pairs]:
    return {one.measure: one for one in read(ctx.store, {a.asset: a}, {b.asset: b})}


def lines(found: dict[str, Pairs]) -> dict[tuple[str, str], Difference]:
    every = corrected([line for one in found.values() for line in of_measure(one, 0)])
    return {(line.measure, line.slice): line for line in every}


def test_exposure_is_of_pairs_of_the_same_canary(ctx: Context) -> None:
    """A canary planted 16 times is known to A alone; one planted once, or not at all, to neither."""
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
    with pytest.raises(IntegrityError, match="different items"):
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
    """A document of two slices counts once; two different windows of it do not form a pair."""
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
    alone = by_measure(ctx, measured_bias(ctx, 3.0, None), measured_bias(ctx, 0.1, 0.1))["toxicity of continuations"]
    assert (alone.rows.num_rows, alone.only_a, alone.only_b) == (0, 0, 48)


def test_what_only_one_model_has_is_counted(ctx: Context) -> None:
    """A set, a task, a probe and an asset of one model alone are in no line, and the comparison names them."""

    def task(name: str, right: int) -> pa.Table:
        rows = [{"document": i, "hash": f"{name}{i}", "filter": "none", "metric": "acc", "score": float(i < right),
                 "weight": None, "bits": 3.0, "bytes": 4, "reason": None} for i in range(20)]  # fmt: skip
        return pa.Table.from_pylist(rows, schema=pa.schema([
            ("document", pa.int64()), ("hash", pa.string()), ("filter", pa.string()), ("metric", pa.string()),
            ("score", pa.float64()), ("weight", pa.float64()), ("bits", pa.float64()), ("bytes", pa.int64()),
            ("reason", pa.string())]))  # fmt: skip

    def tasks(*names: str) -> Manifest:
        parts = [write_table(ctx.store, f"{name}.parquet", task(name, 5), stats={"metrics": {}}) for name in names]
        return Manifest(asset="tasks/small", step="t", version="1", params={}, inputs={}, parts=tuple(parts))

    one, other = tasks("both", "left"), tasks("both", "right")
    found = {each.measure: (each.rows.num_rows, each.only_a, each.only_b) for each in read(
        ctx.store, {one.asset: one}, {other.asset: other})}  # fmt: skip
    assert found == {
        f"{name}: {measure}": counts
        for name, counts in (("both", (20, 0, 0)), ("left", (0, 20, 0)), ("right", (0, 0, 20)))
        for measure in ("acc", "bits per byte of the right answer")
    }
    checkpoint = Manifest(asset="weights", step="w", version="1", params={}, inputs={}, parts=())
    models = [MeasuredModel(checkpoint, {each.asset: each for each in measured})
              for measured in ((one, measured_bias(ctx, 1.0, 0.1)), (other,))]  # fmt: skip
    compared = job.run(ctx, *models)
    assert compared.stats["measured_alone"] == {"a": ["fairness"], "b": []}
    assert compared.stats["unpaired"]["tasks: left: acc"] == [20, 0]
    text = comparison_page(compared, "one", "two")
    assert "Measures that exist only for A: fairness." in text
    assert "tasks: right: acc: 0 items of A and 20 items of B have no counterpart" in text


def test_an_item_that_occurs_twice_is_two_pairs_of_one_cluster(ctx: Context) -> None:
    a = pa.table({"item": ["x", "y", "x", "x"], "value": [1.0, 2.0, 3.0, 4.0]})
    b = pa.table({"item": ["x", "x", "z"], "value": [1.5, 3.5, 9.0]})
    found = align("tasks", "t", a, b, fewer_is_better=True, ratio=False)
    assert found.rows.select(["item", "a", "b"]).to_pylist() == [
        {"item": "x", "a": 1.0, "b": 1.5}, {"item": "x", "a": 3.0, "b": 3.5},
    ]  # fmt: skip
    assert (found.only_a, found.only_b, len(set(found.clusters().tolist()))) == (2, 1, 1)


def test_what_is_no_number_is_no_value(ctx: Context) -> None:
    """A perplexity without end, or a document without words, costs its own pair and no other."""
    names = [f"i{i}" for i in range(30)]
    a = pa.table({"item": names, "value": [*map(float, range(28)), np.inf, 1.0], "weight": [2.0] * 29 + [0.0]})
    b = pa.table({"item": names, "value": [np.nan, *map(float, range(29))], "weight": [2.0] * 29 + [0.0]})
    found = align("tasks", "t", a, b, fewer_is_better=True, ratio=True)
    assert (found.rows.num_rows, found.only_a, found.only_b) == (27, 3, 3)
    (line,) = corrected(list(of_measure(found, 0)))
    assert line.difference.n == 27
    assert extremes(found)["b"]


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
    text = comparison_page(found, "one", "two")
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
        for pairs in read(ctx.store, {"evaluation": one}, {"evaluation": one}):
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
