"""`evaluation`: bits per byte by slice of held-out text, beside two baselines on the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.evaluation import job
from plinth.evaluation.slices import choice, totals
from plinth.provenance.ledger_columns import BASE
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, equal_columns
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import Code, markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One evaluation per checkpoint.

    Raises:
        RecipeError: a slice names a column that the ledger will not have; found before anything runs.
    """
    _check_slices(recipe)
    return [
        Stage(
            asset="evaluation",
            deps=("checkpoint", *each(recipe, "curated"), "ledger", *_protected(recipe)),
            make=partial(_make, recipe),
            version=job.VERSION,
            params=recipe.evaluation.of_held_out(),
            group="evaluation",
            description="Bits per byte of held-out text by bucket, language, domain, length and the recipe's own "
            "slices, by position, and of items of protected sets by whether training text held them; gzip -9 and a "
            "byte trigram on the same bytes.",
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
        types = choice.as_in_ledger(columns_of(annotators)) | own
        for name, text in slices.items():
            choice.read(text, types, f"{choice.WHERE}.{name}")


#: Sums that the slices of an axis share among them.
_COUNTED = ("bits", "bytes", "documents", "tokens")


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated = by_bucket(recipe, inputs, "curated")
    sets = {name: inputs[f"protected/{name}"] for name in recipe.corpus.protected.sets}
    compared = inputs["protected"] if sets else None
    checkpoint, ledger = inputs["checkpoint"], inputs["ledger"]
    return job.run(ctx, recipe.evaluation, checkpoint, curated, ledger, protected=compared, sets=sets)


def _protected(recipe: Recipe) -> tuple[str, ...]:
    """The comparison with protected sets and the sets, where the recipe names some."""
    sets = recipe.corpus.protected.sets
    return ("protected", *(f"protected/{name}" for name in sets)) if sets else ()


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Every axis divides the whole: bits, bytes and documents of its slices add up to it, exactly."""
    whole, every = made.stats["overall"], {"bucket": made.stats["slices"], **made.stats["axes"]}
    rows = [
        {
            f"{kind}_{name}": value
            for name in _COUNTED
            for kind, value in (("all", whole[name]), ("sum", _sum(own, name)))
        }
        for own in every.values()
    ]
    equal = [equal_columns(f"all_{name}", f"sum_{name}") for name in _COUNTED]
    return Suite("evaluation", rows, [*equal, between("all_documents", 1, None)])


def _sum(slices: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    return sum(row[name] for row in slices.values())


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import evaluation as evaluation_figures
    from plinth.report import figures
    from plinth_assets.measurements import evaluation_items

    stats = made.stats
    every = {"all": {"all": stats["overall"]}, "bucket": stats["slices"]} | stats["axes"]
    every |= {f"protected: {name}": found for name, found in stats.get("protected", {}).items()}
    return {
        "dagster/row_count": stats["overall"]["documents"],
        "bits_per_byte": picture(figures.bits_per_byte, stats["slices"]),
        "by_slice": picture(evaluation_figures.intervals, evaluation_items.section("", stats).groups),
        "by_position": picture(evaluation_figures.by_position, stats["positions"]),
        "slices": markdown("\n\n".join(_slices(axis, rows) for axis, rows in every.items())),
        "worst_documents": markdown(_worst(stats["worst"])),
    }


def _slices(axis: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    header = [axis, "bytes", "documents", "model", "95% interval", "gzip", "trigram"]
    paired = all("above" in row for row in rows.values())
    cells = [_slice(name, rows[name], paired) for name in totals.in_order(axis, rows)]
    return table([*header, *(["model less trigram"] if paired else [])], cells)


def _slice(name: str, row: Mapping[str, Any], paired: bool) -> list[Any]:
    cells = [name, row["bytes"], row["n"], row["model"], totals.interval(row), row["gzip"], row["trigram"]]
    if not paired:
        return cells
    less = row["above"]["trigram"]
    return [*cells, f"{less['value']:+.3f} ({less['low']:+.3f} to {less['high']:+.3f})"]


def _worst(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["document", "bucket", "bytes", "bits per byte", "bits above its bucket's rate", "look at it"]
    cells = [
        [row["uri"], row["bucket"], row["bytes"], row["model"], row["excess_bits"], Code(f"plinth explain {row['id']}")]
        for row in rows
    ]
    return table(header, cells)
