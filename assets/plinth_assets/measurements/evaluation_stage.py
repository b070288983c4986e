"""The asset `evaluation`: bits per byte by slice of held-out text, with two baselines on the same bytes. The items of
the evaluation can be recomputed, compared between two models, and shown on the evaluation page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.annotate.base import available
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, groups, labelled, part_table
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.parameters import PARENT_SLICES
from plinth.evaluation.slices import choice, job, tables
from plinth.evaluation.slices.job import in_order
from plinth.evaluation.slices.tables import AXIS
from plinth.provenance.ledger_columns import BASE
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import BITS, MeasureGroup, Section, TextTable, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, by_bucket, each, equal_columns, shared_owner
from plinth_assets.framework.present import Code, markdown, picture, table


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that evaluates the checkpoint on held-out text.

    Raises:
        RecipeError: a slice names a column that the ledger will lack; raised before any stage runs.
    """
    _check_slices(recipe)
    return [
        Stage(
            asset="evaluation",
            deps=("checkpoint", *each(recipe, "curated"), "ledger", *_protected_evaluation(recipe)),
            make=partial(_make, recipe),
            version=job.VERSION,
            params=recipe.evaluation.of_held_out(),
            group="evaluation",
            description="Bits per byte of held-out text by bucket, language, domain, length and the recipe's own "
            "slices, by position, and of protected sets by contamination status. Baselines on the same bytes are gzip "
            "-9 and a byte trigram model.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _check_slices(recipe: Recipe) -> None:
    annotators = tuple(recipe.corpus.annotate)
    slices = {
        name: text
        for name, text in recipe.evaluation.slices.items()
        if not choice.from_other_stages(text, (*annotators, choice.DOCUMENTS))
    }
    if slices:
        own = {f"{choice.DOCUMENTS}.{field.name}": field.type for field in BASE}
        types = choice.as_in_ledger(columns_of(available(recipe.corpus.annotate))) | own
        for name, text in slices.items():
            choice.read(text, types, f"{choice.WHERE}.{name}")


#: Sums that add up over the slices of an axis.
_COUNTED = ("bits", "bytes", "documents", "tokens")


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated = by_bucket(recipe, inputs, "curated")
    sets = {name: inputs[f"protected/{name}"] for name in recipe.corpus.protected.sets}
    compared = inputs["protected"] if sets else None
    checkpoint, ledger = inputs["checkpoint"], inputs["ledger"]
    return job.run(ctx, recipe.evaluation, checkpoint, curated, ledger, protected=compared, sets=sets)


def _protected_evaluation(recipe: Recipe) -> tuple[str, ...]:
    """Return the asset keys of the protected sets and of their comparison with training text. The result is empty if
    the recipe names no sets."""
    sets = recipe.corpus.protected.sets
    return ("protected", *(f"protected/{name}" for name in sets)) if sets else ()


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Check that the bits, bytes and documents of the slices add up exactly to those of the whole, for every axis."""
    whole, every = made.stats["overall"], {"bucket": made.stats["slices"], **made.stats["axes"]}
    rows = [
        {
            f"{kind}_{name}": value
            for name in _COUNTED
            for kind, value in (("all", whole[name]), ("sum", sum(row[name] for row in own.values())))
        }
        for own in every.values()
    ]
    equal = [equal_columns(f"all_{name}", f"sum_{name}") for name in _COUNTED]
    return Suite("evaluation", rows, [*equal, between("all_documents", 1, None)])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import evaluation as evaluation_figures
    from plinth.report import figures

    stats = made.stats
    every = {"all": {"all": stats["overall"]}, "bucket": stats["slices"]} | stats["axes"]
    every |= {f"protected: {name}": found for name, found in stats.get("protected", {}).items()}
    return {
        "dagster/row_count": stats["overall"]["documents"],
        "bits_per_byte": picture(figures.bits_per_byte, stats["slices"]),
        "by_slice": picture(evaluation_figures.intervals, section("", stats).groups),
        "by_position": picture(evaluation_figures.by_position, stats["positions"]),
        "slices": markdown("\n\n".join(_slices_evaluation(axis, rows) for axis, rows in every.items())),
        "worst_documents": markdown(_worst(stats["worst"])),
    }


def _slices_evaluation(axis: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    header = [axis, "bytes", "documents", "model", "95% interval", "gzip", "trigram"]
    paired = all("above" in row for row in rows.values())
    cells = [_slice(name, rows[name], paired) for name in job.in_order(axis, rows)]
    return table([*header, *(["model minus trigram"] if paired else [])], cells)


def _slice(name: str, row: Mapping[str, Any], paired: bool) -> list[Any]:
    cells = [name, row["bytes"], row["n"], row["model"], job.interval(row), row["gzip"], row["trigram"]]
    if not paired:
        return cells
    less = row["above"]["trigram"]
    return [*cells, f"{less['value']:+.3f} ({less['low']:+.3f} to {less['high']:+.3f})"]


def _worst(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["document", "bucket", "bytes", "bits per byte", "excess bits over bucket", "command"]
    cells = [
        [row["uri"], row["bucket"], row["bytes"], row["model"], row["excess_bits"], Code(f"plinth explain {row['id']}")]
        for row in rows
    ]
    return table(header, cells)


#: Optional document columns used as slices.
AXES = ("bucket", "language", "domain", "length")
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, tables.DOCUMENTS)
    labels = np.array(table["bucket"].to_pylist(), dtype=object)
    counted = {name: _rates(table.filter(pa.array(labels == name))) for name in sorted(set(labels))}
    names = ("bytes", "model", "gzip", "trigram")
    return {name: {one: row[one] for one in names} for name, row in made.stats["slices"].items()}, counted


def _rates(table: pa.Table) -> dict[str, Any]:
    """Return the total bytes of documents, and the bits per byte of the model and the baselines. Rates are ratios of
    sums, as in `totals.row`."""
    size = int(pc.sum(table["bytes"]).as_py())
    sums = {name: job.exact_sum(table[f"{name}_bits"].to_numpy()) for name in ("model", "gzip", "trigram")}
    return {"bytes": size, **{name: round(own / size, 6) for name, own in sums.items()}}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the paired held-out documents of two models, and the paired items of each protected set."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align("slices", BITS, *documents, fewer_is_better=True, ratio=True)
    items = [part_table(store, made, "items.parquet") for made in (a, b)]
    for name, (ours, theirs) in groups("set", *items):
        sides = [_protected_evaluation_items(side) for side in (ours, theirs)]
        yield align("protected", name, *sides, fewer_is_better=True, ratio=True)


def pairs_of_parent(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the paired held-out documents from the run of model b, which is the parent of model a."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align(PARENT_SLICES, BITS, *documents, fewer_is_better=True, ratio=True)


def _documents(table: pa.Table) -> pa.Table:
    names = table.schema.names
    axes = {name: name.removeprefix(AXIS) for name in names if name in AXES or name.startswith(AXIS)}
    columns: dict[str, Any] = {
        "item": _hexadecimal(table["id"]),
        "value": table["model_bits"],
        "weight": table["bytes"],
        "slices": labelled(table, axes),
    }
    return pa.table(columns | {to: table[name] for to, name in (("text", "text"), ("source", "uri")) if name in names})


def _hexadecimal(ids: pa.ChunkedArray) -> pa.Array:
    """Format 16-byte document IDs as 32 hexadecimal digits."""
    if not len(ids):
        return pa.array([], pa.string())
    held = ids.combine_chunks()
    packed = np.frombuffer(held.buffers()[1], np.uint8)[16 * held.offset : 16 * (held.offset + len(held))]
    digits = _DIGITS[np.stack([packed >> 4, packed & 15], axis=1)]
    offsets = np.arange(0, digits.size + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(held), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def _protected_evaluation_items(table: pa.Table) -> pa.Table:
    return chosen(table, "model_bits", "bytes", slices=labelled(table, {"status": "status"}))


def section(_: str, stats: Stats) -> Section:
    """Build the page section with bits per byte by slice of every axis, with gzip as the common reference."""
    axes = {"bucket": stats["slices"]} | stats["axes"]
    own = axes.pop("bucket")
    groups = [_slice_group("bits per byte: all held-out text, by bucket", "bucket", {"all": stats["overall"]} | own)]
    groups += [_slice_group(f"by {axis}", axis, rows) for axis, rows in axes.items() if len(rows) > 1]
    return Section(
        key="slices",
        title="Held-out text",
        lead="The model's bits per byte of text can be compared between tokenizers. Intervals are computed by "
        "resampling documents.",
        groups=tuple(groups),
        tables=tuple(_item_tables(stats.get("protected", {}))),
    )


def _slice_group(title: str, axis: str, rows: Mapping[str, Stats]) -> MeasureGroup:
    measures = (measure(name, rows[name], "model", reference=rows[name]["gzip"]) for name in in_order(axis, rows))
    return MeasureGroup(title=title, unit=BITS, better="lower", reference_name="gzip -9", measures=tuple(measures))


def _item_tables(protected: Mapping[str, Mapping[str, Stats]]) -> Iterable[TextTable]:
    """Yield a table of the protected sets' scores by contamination status."""
    rows = [
        (name, status, f"{row['items']:,}", f"{row['model']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}")
        for name, found in protected.items()
        for status, row in found.items()
    ]
    if rows:
        yield TextTable(
            title="Protected sets by contamination status",
            header=("set", "status", "items", BITS, "95% interval"),
            rows=tuple(rows),
        )
