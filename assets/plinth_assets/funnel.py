"""`funnel`: documents and bytes in and out of every stage and bucket, and the effective token budget."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import funnel
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text import counted
from plinth_assets.framework.expectations import Suite, between, docs_index, equal_columns, rows_between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, page_value, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage

#: Reasons that a warning about an empty bucket names.
EMPTIED_REASONS = 3


def stages(recipe: Recipe) -> list[Stage]:
    """One account of the whole corpus."""
    return [
        Stage(
            asset="funnel",
            deps=_deps(recipe),
            make=partial(_make, recipe),
            version=funnel.VERSION,
            params={},
            group="report",
            description="Documents and bytes in and out of every stage, by bucket and reason; D_eff with its factors.",
            owner=shared_owner(recipe),
            suite=_suite,
            present=_present,
        )
    ]


def _deps(recipe: Recipe) -> tuple[str, ...]:
    """Tokens and padding are counted where the recipe has a mixture."""
    corpus = each(recipe, "sources", "documents", "verdicts", "curated")
    return corpus if recipe.mixture is None else (*corpus, *each(recipe, "shards"), "mixture")


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, verdicts = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "verdicts")
    curated, sources = by_bucket(recipe, inputs, "curated"), by_bucket(recipe, inputs, "sources")
    shards = None if recipe.mixture is None else by_bucket(recipe, inputs, "shards")
    return funnel.run(ctx, documents, verdicts, curated, shards, inputs.get("mixture"), sources)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Nothing is lost: output of a stage is input of the next, and input less output is the number removed."""
    rows = []
    for bucket, account in made.stats["buckets"].items():
        stages_ = account["stages"]
        for row, after in zip(stages_, [*stages_[1:], None], strict=True):
            rows.append(
                {
                    "bucket": bucket,
                    "in_less_removed": row["documents_in"] - row["removed"],
                    "out": row["documents_out"],
                    "next_in": after["documents_in"] if after else row["documents_out"],
                }
            )
    accounts = made.stats["buckets"]
    whole, empty = made.stats["total"]["trained"]["documents"], dict.fromkeys(accounts, 0)
    empty |= {bucket: 1 for bucket, account in accounts.items() if not account["trained"]["documents"]}
    rows = [{**row, "trained": whole, "empty": empty[row["bucket"]]} for row in rows]
    emptied = [_emptied(bucket, accounts[bucket]) for bucket in accounts if empty[bucket]]
    expectations = [
        rows_between(len(accounts)),
        equal_columns("in_less_removed", "out"),
        equal_columns("out", "next_in"),
        between("trained", 1, None, because=["no bucket has a document left to train on", *emptied]),
        between("empty", 0, 0, "warning", because=emptied),
    ]
    return Suite("funnel", rows, expectations)


def _emptied(bucket: str, account: Mapping[str, Any]) -> str:
    """Name the stages and rules that removed all documents of a bucket, most first."""
    found = account["stages"][0]["documents_in"]
    reasons = sorted(
        (
            (cause["documents"], f"{reason} ({row['stage']})")
            for row in account["stages"]
            for reason, cause in row["reasons"].items()
            if row["removed"] and cause["documents"]
        ),
        reverse=True,
    )
    named = ", ".join(f"{count:,} by {reason}" for count, reason in reasons[:EMPTIED_REASONS])
    removed = f"removed: {named}" if named else "the sources have none"
    return f"bucket {bucket} has no document left to train on; of {counted(found, 'record')} {removed}"


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures, sankey

    header = ["bucket", "stage", "in", "out", "removed", "removed bytes", "removed tokens"]
    accounts = {"all": made.stats["total"], **made.stats["buckets"]}
    rows = [
        [bucket, row["stage"], row["documents_in"], row["documents_out"], row["removed"], *_volume(row)]
        for bucket, account in accounts.items()
        for row in account["stages"]
    ]
    reasons = [
        [
            row["stage"],
            reason + " (damage)" * found.get("damage", False),
            found["documents"],
            *_known(found.get("bytes")),
            *_known(found.get("unique")),
        ]
        for row in made.stats["total"]["stages"]
        for reason, found in sorted(row["reasons"].items(), key=lambda item: -item[1]["documents"])
    ]
    factors = [[name, value] for name, value in made.stats["total"]["effective"].items()]
    return {
        "sankey": picture(sankey.figure, made.stats),
        "funnel": picture(figures.funnel, made.stats),
        "reasons": markdown(table(["stage", "reason", "documents", "bytes", "it alone"], reasons)),
        "data_docs": page_value(ctx, docs_index(ctx.workspace)),
        "stages": markdown(table(header, rows)),
        "effective": markdown(table(["factor", "value"], factors)),
    }


def _volume(row: dict[str, Any]) -> tuple[Any, Any]:
    return *_known(row["removed_bytes"]), *_known(row["tokens_removed"])


def _known(value: int | None) -> tuple[Any]:
    """A dash for what cannot be measured."""
    return ("-" if value is None else value,)
