"""`mixture`: the sequences of each stream that the run reads, by phase, in exact counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens.mixture import apportion, mixture
from plinth.tokens.mixture.apportion import advice
from plinth.tokens.packing import packing as index
from plinth.training.initial import replay, source
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import each, planted, read_by_run, shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage

NO_TOKENS = "bucket {} has no tokens; its share goes to the other buckets"


def stages(recipe: Recipe) -> list[Stage]:
    """One mixture per recipe."""
    params, begun = recipe.required_mixture(), recipe.training.initial
    replays = bool(begun and begun.replay)
    return [
        Stage(
            asset="mixture",
            deps=(
                *(*each(recipe, *_kinds(recipe)), *planted(recipe, *_kinds(recipe))),
                *((source.ASSET, "tokenizer") if replays else ()),
            ),
            make=partial(_make, recipe),
            version=mixture.VERSION,
            params=params.model_dump(mode="json") | ({"replay": begun.replay} if begun and replays else {}),
            group="mixture",
            description=f"{params.total_tokens:,} tokens in {len(params.phases)} phases.",
            owner=shared_owner(recipe),
            kinds=("python",),
            suite=_suite,
            present=_present,
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    packed = read_by_run(recipe, inputs, "packed") if "packed" in _kinds(recipe) else None
    own = [CANARIES] if recipe.corpus.canaries else []
    params, shards, begun = recipe.required_mixture(), read_by_run(recipe, inputs, "shards"), recipe.training.initial
    if begun is None or not begun.replay:
        return mixture.run(ctx, params, shards, packed, own)
    parent = replay.of_parent(ctx, inputs[source.ASSET], inputs["tokenizer"])
    indexes = (
        {}
        if packed is None
        else {bucket: index.run(ctx, bucket, params.sequence_tokens, made) for bucket, made in parent.shards.items()}
    )
    for made in (*parent.shards.values(), *indexes.values()):
        ctx.refs.save(made)
    asked = parent.sequences(begun.replay, params.total_tokens // params.sequence_tokens)
    say(f"replayed: {sum(asked.values())} sequences of {', '.join(parent.shards)}")
    return mixture.run(ctx, params, shards | parent.shards, (packed or {}) | indexes, own, asked)


def _kinds(recipe: Recipe) -> tuple[str, ...]:
    """Kinds of inputs that the mixture has of every bucket."""
    return ("shards",) if recipe.required_mixture().packing == "concatenate" else ("shards", "packed")


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    # Counts are whole: a short phase cannot come nearer to its weights than a few sequences of each of its legs.
    off = made.stats["realised"]["max_share_error"]
    empty = made.stats.get("empty", [])
    rows = [
        {
            **row,
            "empty": len(empty),
            "excess": row["share_error"] - max(apportion.TOLERANCE, 8 * row["legs"] / row["phase_sequences"]),
            "repeated": row["epochs"] - row["max_epochs"],
            "realised_error": off,
        }
        for row in mixture.rows(made)
    ]
    expectations = [
        rows_between(1),
        between("excess", None, 0),
        between("repeated", None, 0),
        between("sequences", 0, None),
        between("realised_error", 0, apportion.TOLERANCE),
        between("empty", 0, 0, "warning", because=[NO_TOKENS.format(name) for name in empty]),
    ]
    return Suite("mixture", rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures

    off = made.stats["realised"]
    shown: dict[str, Any] = {
        "mixture": picture(figures.mixture, mixture.rows(made)),
        "course": picture(figures.mixture_shares, apportion.shares_over_run(made.stats), made.stats["sequence_tokens"]),
        "largest_difference": float(max(off["max_share_error"], off["rest_share_error"])),
        "streams": markdown(table(["stream", "tokens", "epochs", "at most"], [list(row) for row in _streams(made)])),
    }
    said = advice(made.stats)
    return shown | ({"advice": markdown("\n".join(f"- {sentence}" for sentence in said))} if said else {})


def _streams(made: Manifest) -> Iterator[tuple[str, int, float, float]]:
    for name, own in made.stats["buckets"].items():
        yield name, own["needed"] * made.stats["sequence_tokens"], own["epochs"], own["max_epochs"]
