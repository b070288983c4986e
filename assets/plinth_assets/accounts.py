"""The assets `funnel` and `ledger`. The funnel counts the documents and bytes that enter and leave every stage and
bucket, and the effective token budget. The ledger has one row per document with all facts about it, for any engine that
reads Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import funnel, verdicts
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.provenance import ledger
from plinth.provenance.ledger_columns import BASE
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text import counted
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework import (
    Inputs,
    Say,
    Stage,
    Suite,
    between,
    by_bucket,
    docs_index,
    each,
    equal_columns,
    planted,
    rows_between,
    shared_owner,
)
from plinth_assets.framework.present import markdown, page_value, picture, table
from plinth_assets.verdicts import curate_stages

#: Maximum number of reasons in the warning about an empty bucket.
EMPTIED_REASONS = 3


def funnel_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that computes the funnel of the whole corpus."""
    return [
        Stage(
            asset="funnel",
            deps=_deps(recipe),
            make=partial(_make_funnel, recipe),
            version=funnel.VERSION,
            params={},
            group="report",
            description="Number of documents and bytes that enter and leave every stage, by bucket and removal "
            "reason; effective number of tokens, which is the product of the listed factors.",
            owner=shared_owner(recipe),
            suite=_suite_funnel,
            present=_present_funnel,
        )
    ]


def _deps(recipe: Recipe) -> tuple[str, ...]:
    """Return the input assets of the funnel. If the recipe has a mixture, they include the shards and the mixture, so
    that tokens and padding are counted."""
    corpus = each(recipe, "sources", "documents", "verdicts", "curated")
    return corpus if recipe.mixture is None else (*corpus, *each(recipe, "shards"), "mixture")


def _make_funnel(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, verdicts = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "verdicts")
    curated, sources = by_bucket(recipe, inputs, "curated"), by_bucket(recipe, inputs, "sources")
    shards = None if recipe.mixture is None else by_bucket(recipe, inputs, "shards")
    return funnel.run(ctx, documents, verdicts, curated, shards, inputs.get("mixture"), sources)


def _suite_funnel(made: Manifest, inputs: Inputs) -> Suite:
    """Check that no document is lost: each stage's output is the next stage's input, and the difference between input
    and output is the number of removed documents."""
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
        between("trained", 1, None, because=["no bucket has training documents left", *emptied]),
        between("empty", 0, 0, "warning", because=emptied),
    ]
    return Suite("funnel", rows, expectations)


def _emptied(bucket: str, account: Mapping[str, Any]) -> str:
    """Return a message with the stages and rules that removed all documents of a bucket, sorted by the number of
    documents that each removed."""
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
    removed = f"; removed: {named}" if named else ""
    return f"bucket {bucket} has no training documents left; its sources have {counted(found, 'record')}{removed}"


def _present_funnel(ctx: Context, made: Manifest) -> dict[str, Any]:
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
        "reasons": markdown(table(["stage", "reason", "documents", "bytes", "sole reason"], reasons)),
        "data_docs": page_value(ctx, docs_index(ctx.workspace)),
        "stages": markdown(table(header, rows)),
        "effective": markdown(table(["factor", "value"], factors)),
    }


def _volume(row: dict[str, Any]) -> tuple[Any, Any]:
    return *_known(row["removed_bytes"]), *_known(row["tokens_removed"])


def _known(value: int | None) -> tuple[Any]:
    """Return a table cell in a 1-tuple: the value, or a dash if the value is unknown."""
    return ("-" if value is None else value,)


def ledger_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that writes the ledger of the whole corpus."""
    kinds = ("documents", *annotator_parameters(recipe), "policy", "verdicts", "curated")
    placed = () if recipe.mixture is None else (*each(recipe, "shards"),)
    mixed = () if recipe.mixture is None else ("mixture",)
    return [
        Stage(
            asset=ledger.ASSET,
            deps=(*each(recipe, *kinds), *placed, *shared_stages(recipe).values(), *_planted(recipe), *mixed),
            make=partial(_make_ledger, recipe),
            version=ledger.VERSION,
            params={},
            group="report",
            description="One row per document: source, license, scores, duplicates, verdict, edits, weight and shard.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
            schema=BASE,
            suite=_suite_ledger,
            present=_present_ledger,
        )
    ]


def shared_stages(recipe: Recipe) -> dict[str, str]:
    """Return the assets that cover all buckets and are inputs of the verdicts, by the name of their ledger column."""
    buckets = recipe.corpus.buckets
    deps = [dep for stage in curate_stages(recipe) if stage.asset.endswith("/verdicts") for dep in stage.deps]
    keys = dict.fromkeys(dep for dep in deps if dep.partition("/")[0] not in buckets)
    names = {asset: name for name, asset in verdicts.ASSETS.items()}
    return {names.get(key, key.rpartition("/")[2]): key for key in keys}


def _planted(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets with the text and the shards of the canaries; empty if the recipe has no mixture."""
    return planted(recipe, "curated", "shards") if recipe.mixture is not None else ()


def _make_ledger(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    def of(kind: str) -> Mapping[str, Manifest]:
        return by_bucket(recipe, inputs, kind)

    made = ledger.Made(
        documents=of("documents"),
        policies=of("policy"),
        verdicts=of("verdicts"),
        annotations={name: of(name) for name in annotator_parameters(recipe)},
        shared={name: inputs[key] for name, key in shared_stages(recipe).items()},
        curated=of("curated"),
        shards=None if recipe.mixture is None else of("shards"),
        mixture=inputs.get("mixture"),
        canaries=tuple(inputs[key] for key in _planted(recipe)),
    )
    return ledger.run(ctx, made)


def _suite_ledger(made: Manifest, inputs: Inputs) -> Suite:
    """Check that every document has a row, and that every training document is in the shards, or in the curated text if
    there are no shards."""
    documents = [one for key, one in inputs.items() if key.endswith("/documents")]
    last = "/shards" if "mixture" in inputs else "/curated"
    places = [one for key, one in inputs.items() if key.endswith(last) and not key.startswith(f"{CANARIES}/")]
    row = {
        "rows": made.stats["documents"],
        "documents": sum(int(one.stats["documents"]) for one in documents),
        "trained": made.stats["trained"],
        "placed": sum(int(one.stats["documents"]) for one in places),
        "rejects": made.stats["rejects"],
        "refused": sum(sum(one.stats.get("rejects", {}).values()) for one in documents),
    }
    expectations = [
        rows_between(1),
        equal_columns("rows", "documents"),
        equal_columns("trained", "placed"),
        equal_columns("rejects", "refused"),
    ]
    return Suite("ledger", [row], expectations)


def _present_ledger(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows: dict[str, list[int]] = {}
    for part in made.parts:
        bucket, _, name = part.name.partition("/")
        own = rows.setdefault(bucket, [0, 0, 0])
        own[0 if name.startswith("part-") else 1] += part.rows
        own[2] += part.blob.bytes
    listed = [[bucket, *numbers] for bucket, numbers in rows.items()]
    example = "select reason, count(*) from 'ledger/*.parquet' group by all order by 2 desc"
    return {
        "rows": markdown(table(["bucket", "documents", "rejects", "bytes"], listed)),
        "query": markdown(f'`plinth corpus ledger export ledger`, then `duckdb -c "{example}"`'),
    }
