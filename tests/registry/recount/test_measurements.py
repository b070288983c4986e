"""Figures that gates read equal those computed from their tables; a different one is named, whatever its signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation import pii
from plinth.evaluation.comparison import job
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.evaluation.engine.records import Request
from plinth.evaluation.pii import PiiDetector
from plinth.evaluation.probes import job as probes
from plinth.evaluation.slices import job as totals
from plinth.evaluation.slices import tables as slices
from plinth.evaluation.tasks.job import ITEMS
from plinth.records import Manifest
from plinth.storage.parts import named_table, write_table
from plinth_audit import pii_outputs
from plinth_audit.canaries import job as canaries
from plinth_audit.extraction import job as extraction
from plinth_audit.fairness import job as fairness
from plinth_audit.fairness.pairs import Pair, by_attribute
from plinth_audit.pii_outputs import job as outputs
from plinth_registry import evidence, gates
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.settings import GatePolicy, release_gates
from tests.registry.conftest import document_table
from tests.registry.gate_evidence import policy, proof, set_fact

CHECKPOINTS = {"a": "a" * 64, "b": "b" * 64}


def manifest(ctx: Context, asset: str, tables: dict[str, pa.Table], stats: Any, **params: Any) -> Manifest:
    parts = tuple(write_table(ctx.store, name, table) for name, table in tables.items())
    inputs = {"checkpoint": CHECKPOINTS["a"]}
    made = Manifest(asset=asset, step="s", version="1", params=params, inputs=inputs, parts=parts, stats=stats)
    ctx.refs.save(made)
    return made


def evaluation(ctx: Context, shift: float = 0.0) -> Manifest:
    n = 24
    columns: dict[str, Any] = {
        "id": [fingerprint.digest(i).encode()[:16] for i in range(n)],
        "text": [fingerprint.digest(i).encode()[:16] for i in range(n)],
        **{name: [f"u{i}" for i in range(n)] for name in slices.DOCUMENT_COLUMNS.names if name == "uri"},
        **{name: ["web" if i % 3 else "code" for i in range(n)] for name in slices.BUILT_IN},
        "bytes": [100 + i for i in range(n)],
        "tokens": [30] * n,
        "model_bits": [200.0 + 3 * (i % 5) + shift * (1 + i % 3) for i in range(n)],
        "gzip_bits": [350.0] * n,
        "trigram_bits": [250.0] * n,
    }
    table = pa.table(columns, schema=slices.DOCUMENT_COLUMNS)
    return manifest(ctx, "evaluation", {slices.DOCUMENTS: table}, {"slices": totals.axis_totals(table)["bucket"]})


def probe(ctx: Context) -> Manifest:
    row = {"probe": "maths", "family": "f", "bytes": 10, "margin": None, "correct": None, "centred": None}
    rows = [
        row | {"template": str(i % 3), "item": str(i), "status": status, "bits": bits, "control_bits": 30.0 + i}
        for i, (status, bits) in enumerate([("clean", 20.0), ("clean", 22.0), ("contaminated", 1.0), ("clean", None)])
    ]
    table = pa.Table.from_pylist(rows, schema=probes.SCHEMA)
    return manifest(ctx, "probes", {probes.FILE: table}, probes.statistics_of(rows))


def tasks(ctx: Context) -> Manifest:
    score = {"hash": "h", "filter": "none", "score": 1.0, "weight": None, "bits": 1.0, "bytes": 4, "output": None}
    rows = [score | {"document": i // 2, "metric": "ab"[i % 2], "reason": None} for i in range(6)]
    rows.append(dict.fromkeys(ITEMS.names) | {"hash": "", "filter": "", "metric": "", "reason": "no JSON"})
    table = pa.Table.from_pylist(rows, schema=ITEMS)
    stats = {"tasks": {"copying": {"documents": 3, "damaged": 1}}}
    return manifest(ctx, "tasks/small", {"copying.parquet": table}, stats)


def extracted(ctx: Context) -> Manifest:
    rows = [
        dict.fromkeys(("offset", "seen"), 0)
        | {"slice": "all", "id": str(i), "bucket": "web", "heldout": False, "prefix": [1], "completion_text": ""}
        | {"suffix": list(range(20)), "completion": [*range(20 - i), *[99] * i], "edits": i}
        | {"outcome": ("exact", "near", "near", "other")[i]}
        for i in range(4)
    ]
    table = pa.Table.from_pylist(rows, schema=extraction.SCHEMA)
    stats = extraction.summary(table, ["personal_data"])
    return manifest(ctx, "memorisation/extraction", {extraction.TABLE: table}, stats, near_edits=0.1)


def exposed(ctx: Context) -> Manifest:
    bits = np.random.default_rng(0).normal(100, 5, 24 + 128)
    given = {
        "kind": ["canary"] * 24 + ["reference"] * 128,
        "number": list(range(24 + 128)),
        "repetitions": [1, 64] * 12 + [0] * 128,
        "planted": [number % 4 < 2 for number in range(24)] + [False] * 128,
    }
    table = canaries.table(pa.table(given), bits, np.full(bits.size, 50), {})
    return manifest(ctx, "memorisation/canaries", {canaries.TABLE: table}, canaries.summary(table))


def biased(ctx: Context) -> Manifest:
    side = Request("", "")
    pairs = [Pair("built_in", str(n), "gender", str(n % 5), n % 2 == 0, side, side) for n in range(20)]
    table = fairness.table(pairs, np.full(40, 9), np.arange(40.0) ** 1.1)
    attributes = by_attribute(pairs, table["favoured"].to_numpy())
    return manifest(ctx, "fairness", {fairness.PAIRS: table}, {"attributes": attributes, "toxicity": None})


def compared(ctx: Context) -> Manifest:
    sides = []
    for name, own in (("a", evaluation(ctx)), ("b", evaluation(ctx, shift=2.0))):
        checkpoint = manifest(ctx, "checkpoint", {}, {"run_id": name})
        sides.append(MeasuredModel(checkpoint, {"evaluation": own}))
    made = job.run(ctx, *sides)
    ctx.refs.save(made)
    return made


def left(ctx: Context) -> Manifest:
    """Personal data left in two of three documents of a bucket, and in none of another."""
    texts = {"web": ["Write to ada@firma.de or to eve@firma.de.", "To ada@firma.de.", "Quiet."], "code": ["Calm."]}
    curated = {
        bucket: manifest(ctx, f"{bucket}/curated", {"part-00000.parquet": document_table(*own)}, {})
        for bucket, own in texts.items()
    }
    made = pii.run(ctx, manifest(ctx, "checkpoint", {}, {}), curated, PiiDetector({}, {}))
    ctx.refs.save(made)
    return made


def wrote(ctx: Context) -> Manifest:
    kinds = [pii_outputs.UNPROMPTED] * 3 + [pii_outputs.INVITED]
    rows = [{"kind": kind, "prompt": "", "draw": at, "text": "ada@firma.de"} for at, kind in enumerate(kinds)]
    finds = [{"output": at, "rule": "email", "found": "ada@firma.de", "training_documents": at} for at in (0, 3)]
    tables = {
        outputs.OUTPUTS: pa.Table.from_pylist(rows, schema=outputs.SCHEMA),
        outputs.FINDS: pa.Table.from_pylist(finds, schema=outputs.FIND_SCHEMA),
    }
    return manifest(ctx, outputs.ASSET, tables, outputs.summary(*tables.values()))


MAKERS: dict[str, Callable[[Context], Manifest]] = {
    "evaluation": evaluation,
    "probes": probe,
    "tasks/small": tasks,
    "memorisation/extraction": extracted,
    "memorisation/canaries": exposed,
    "fairness": biased,
    "comparison": compared,
    "pii/data": left,
    "pii/outputs": wrote,
}


@pytest.mark.parametrize("asset", MAKERS)
def test_what_a_stage_states_is_what_its_tables_give(ctx: Context, asset: str) -> None:
    assert evidence.miscounted_measurements(ctx, {asset: MAKERS[asset](ctx)}) == {}


@pytest.mark.parametrize(
    ("asset", "path", "value", "said"),
    [
        ("evaluation", "slices/web/model", 0.22, "web/model: stated 0.22, recomputed 1.8"),
        ("evaluation", "slices/code/trigram", 9.0, "code/trigram: stated 9"),
        ("evaluation", "slices/prose", {"bytes": 9, "model": 0.1, "gzip": 9.0, "trigram": 9.0}, "prose: stated"),
        ("probes", "probes/maths/items", 3, "maths/items: stated 3, recomputed 2"),
        ("probes", "probes/maths/signal/value", 1.5, "maths/signal: stated 1.5, recomputed 0.95"),
        ("tasks/small", "tasks/copying/damaged", 0, "copying/damaged: stated 0, recomputed 1"),
        ("tasks/small", "tasks/copying/documents", 30, "copying/documents: stated 30, recomputed 3"),
        ("memorisation/extraction", "slices/all/either/upper", 0.01, "all/upper: stated 0.01"),
        ("memorisation/extraction", "slices/all/n", 400, "all/n: stated 400, recomputed 4"),
        ("memorisation/canaries", "audit/epsilon", 0.0001, "epsilon: stated 0.0001"),
        ("memorisation/canaries", "groups/64/exposure/value", 0.5, "groups/64/value: stated 0.5"),
        ("memorisation/canaries", "planted", 40, "planted: stated 40, recomputed 12"),
        ("fairness", "attributes/gender/high", 0.1, "gender/high: stated 0.1"),
        ("pii/data", "found", 0, "all/found: stated 0, recomputed 2"),
        ("pii/data", "buckets/web/documents", 900, "web/documents: stated 900, recomputed 3"),
        ("pii/data", "buckets/web/at_most", 0.001, "web/at_most: stated 0.001"),
        ("pii/data", "kinds/email/per_million_at_most", 1.0, "email: stated 1"),
        ("pii/outputs", "all/memorised", 0, "all/memorised: stated 0, recomputed 1"),
        ("pii/outputs", "unprompted/at_most", 0.01, "unprompted/at_most: stated 0.01"),
        ("comparison", "lines/0/difference/high", -9.0, "high: stated -9"),
        ("comparison", "lines/0/fewer_is_better", False, "fewer_is_better: stated False, recomputed True"),
        ("comparison", "models/b/checkpoint", "c" * 64, "models/b: stated cccc"),
    ],
)
def test_a_figure_that_no_table_gives_is_named(ctx: Context, asset: str, path: str, value: Any, said: str) -> None:
    made = MAKERS[asset](ctx)
    stats = made.model_dump(mode="json")["stats"]
    set_fact(stats, path, value)
    forged = made.model_copy(update={"stats": stats})
    (faults,) = evidence.miscounted_measurements(
        ctx, {asset: Manifest.model_validate(forged.model_dump(mode="json"))}
    ).values()
    assert said in " ".join(faults)
    assert all(one.startswith(f"{asset}: ") for one in faults)


def test_the_ranks_of_canaries_follow_from_their_bits(ctx: Context) -> None:
    """The table itself lists them as forgotten: its bits contradict that."""
    good = exposed(ctx)
    table = named_table(ctx.store, good, canaries.TABLE)
    at = table.schema.get_field_index("rank")
    ranks = pa.array([None if rank is None else 64 for rank in table["rank"].to_pylist()])
    changed = table.set_column(at, "rank", ranks)
    forged = manifest(ctx, good.asset, {canaries.TABLE: changed}, canaries.summary(changed))
    (faults,) = evidence.miscounted_measurements(ctx, {good.asset: forged}).values()
    assert "wrong ranks: stated 0, recomputed 24" in " ".join(faults)


def test_a_comparison_is_of_the_measurements_that_are_attested(ctx: Context) -> None:
    made = compared(ctx)
    found = {"comparison": made, "evaluation": evaluation(ctx, shift=9.0)}
    (said,) = evidence.miscounted_measurements(ctx, found)["comparison"]
    assert said.startswith("comparison: attested/evaluation: stated ")


@pytest.mark.parametrize("asset", [name for name in MAKERS if name != "tasks/small"])
def test_without_its_table_or_its_statistics_nothing_counts(ctx: Context, asset: str) -> None:
    made = MAKERS[asset](ctx)
    lost = {"parts": ()} if asset != "comparison" else {"inputs": {}}
    for changes in (lost, {"stats": {}}):
        bare = Manifest.model_validate(made.model_copy(update=changes).model_dump(mode="json"))
        (faults,) = evidence.miscounted_measurements(ctx, {asset: bare}).values()
        assert "cannot be recomputed" in faults[0] or "stated" in faults[0]


def test_a_table_that_is_gone_is_looked_for_again(ctx: Context) -> None:
    made = tasks(ctx)
    blob = ctx.store.located(made.parts[0].blob)
    kept = blob.read_bytes()
    blob.chmod(0o644)
    blob.unlink()
    evidence._COUNTED_FAULTS.clear()
    assert "cannot be recomputed" in evidence.miscounted_measurements(ctx, {"tasks/small": made})["tasks"][0]
    blob.write_bytes(kept)
    assert evidence.miscounted_measurements(ctx, {"tasks/small": made}) == {}


def test_figures_by_number_are_compared_too() -> None:
    assert evidence.differences({1: 2, 4: 2}, {1: 2, 4: 3}) == ("4: stated 2, recomputed 3",)
    assert evidence.differences({"1": 2}, {1: 2}) == ()


def test_numbers_that_differ_in_their_last_bits_are_the_same() -> None:
    assert evidence.differences({"a": 1.0, "b": [1]}, {"a": 1.0 + 1e-9, "b": [1]}) == ()
    assert evidence.differences({"a": True}, {"a": 1.5}) == ("a: stated True, recomputed 1.5",)
    assert evidence.differences({"a": float("nan")}, {"a": 1.0}) == ("a: stated nan, recomputed 1",)
    many = evidence.differences({str(i): i for i in range(9)}, {})
    assert (len(many), many[-1]) == (4, "6 more figures differ")


@pytest.mark.parametrize("kind", sorted({kind for gate in release_gates().values() for kind in gate.counted}))
def test_what_was_miscounted_fails_every_gate_that_rests_on_it_and_no_other(kind: str) -> None:
    asked: GatePolicy = policy()
    evidence = Evidence.model_validate(proof().model_dump(mode="json") | {"miscounted": {kind: ["x: stated 1"]}})
    failed = {one.name: one.reason for one in gates.evaluate(asked, evidence) if not one.passed}
    assert set(failed) == {name for name, gate in release_gates().items() if kind in gate.counted}
    assert set(failed.values()) == {"does not match its tables: x: stated 1"}
