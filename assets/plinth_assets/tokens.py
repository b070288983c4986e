"""The assets `tokenizer`, `tokenizer/audit`, `{bucket}/shards`, `{bucket}/packed`, `canaries/…` and `mixture`. These
assets turn text into tokens and compute the exact number of sequences that a run reads from each stream in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA
from plinth.tokens import packing
from plinth.tokens.mixture import apportion, mixture
from plinth.tokens.mixture.apportion import advice
from plinth.tokens.order.steps import lengths
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards, Stream, streams_of
from plinth.tokens.shards.staged_tokens import sidecars_of
from plinth.tokens.tokenizer import audit, encode, tokenizer
from plinth.tokens.tokenizer.vocabulary import DEAD_TOKENS, lexis_of
from plinth.training import initial
from plinth_assets.framework import (
    Inputs,
    Say,
    Stage,
    Suite,
    between,
    by_bucket,
    each,
    equal_columns,
    no_nulls,
    planted,
    read_by_run,
    rows_between,
    shared_owner,
)
from plinth_assets.framework.present import markdown, picture, table

TOKENIZERS = {
    "bpe-bytes": "Byte-level BPE",
    "bpe-fallback": "BPE with byte fallback",
    "unigram": "Unigram pieces with byte fallback",
}
#: Models whose tokenizer a run may reuse, by tokenizer kind, which is also the asset.
KEPT_TOKENIZERS = {"initial": "the initial weights", "teacher": "the teacher"}


def tokenizer_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that trains the tokenizer on curated text, and the stage that audits it. Later stages depend on
    the audit."""
    params, owner = recipe.tokenizer, shared_owner(recipe)
    return [
        _kept_tokenizer(params.kind, owner) if params.kind in KEPT_TOKENIZERS else _trained_tokenizer(recipe, owner),
        Stage(
            asset="tokenizer/audit",
            deps=("tokenizer", *each(recipe, "curated", "documents", "language")),
            make=partial(_make_audit, recipe),
            version=audit.VERSION,
            params=params.model_dump(mode="json"),
            libraries=fingerprint.libraries("unicode", *encode.LIBRARIES),
            group="tokens",
            description="Audit of the tokenizer: fertility by bucket, language and domain; checks of round trips, "
            "digits, spaces and dead tokens.",
            owner=owner,
            kinds=("python",),
            suite=_suite_tokenizer,
            present=_present_tokenizer,
        ),
    ]


def _trained_tokenizer(recipe: Recipe, owner: str) -> Stage:
    params = recipe.tokenizer
    return Stage(
        asset="tokenizer",
        deps=each(recipe, "curated"),
        make=lambda ctx, inputs, _: tokenizer.run(ctx, params, by_bucket(recipe, inputs, "curated")),
        version=tokenizer.VERSION,
        params=tokenizer.step(params).params,
        libraries=tokenizer.step(params).libraries,
        group="tokens",
        description=f"{TOKENIZERS[params.kind]} with a vocabulary of {params.vocab_size:,} tokens, trained on a sample "
        "of every bucket.",
        owner=owner,
        kinds=("huggingface",),
    )


def _kept_tokenizer(model: str, owner: str) -> Stage:
    return Stage(
        asset="tokenizer",
        deps=(model,),
        make=lambda ctx, inputs, _: tokenizer.of_model(ctx, inputs[model]),
        version=tokenizer.VERSION,
        params={"kind": model},
        group="tokens",
        description=f"The tokenizer of {KEPT_TOKENIZERS[model]}.",
        owner=owner,
        kinds=("huggingface",),
    )


def _make_audit(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated, documents = by_bucket(recipe, inputs, "curated"), by_bucket(recipe, inputs, "documents")
    language = by_bucket(recipe, inputs, "language")
    return audit.run(ctx, recipe.tokenizer, inputs["tokenizer"], curated, documents, language)


def _suite_tokenizer(made: Manifest, inputs: Inputs) -> Suite:
    """Check the audit of the tokenizer. A bucket without text is not measured, which causes a warning."""
    stats = made.stats
    common = {"failures": len(stats["failures"]), "unjudged": len(stats["unjudged"])}
    rows = [{"bucket": name, **facts, **common} for name, facts in stats["buckets"].items() if facts["tokens"]]
    expectations = [
        rows_between(1),
        no_nulls("fertility"),
        between("failures", 0, 0, because=stats["failures"]),
        between("unjudged", 0, 0, "warning", because=stats["unjudged"]),
        between("bytes_per_token", 1, 64),
    ]
    return Suite("tokenizer-audit", rows, expectations)


def _present_tokenizer(ctx: Context, made: Manifest) -> dict[str, Any]:
    shown = {}
    for axis in ("buckets", "languages", "domains"):
        rows = [[name, facts["fertility"], facts["bytes_per_token"]] for name, facts in made.stats[axis].items()]
        shown[axis] = markdown(table([axis, "fertility", "bytes per token"], rows))
    rows = [
        [DEAD_TOKENS[kind], made.stats[f"{kind}_tokens"], "  ".join(made.stats[f"{kind}_examples"][:8])]
        for kind in DEAD_TOKENS
    ]
    shown["tokens"] = markdown(table(["tokens", "count", "examples"], rows))
    space = made.stats["whitespace"]
    rows = [[name, count] for name, count in space["tokens"].items()]
    rows += [
        ["longest run of spaces", space["longest_run"]],
        ["longest run of digits", made.stats["digits"]["longest"]],
    ]
    shown["white space and digits"] = markdown(table(["text", "tokens"], rows))
    return shown


def shard_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that write token shards, one stage per bucket."""
    return [shards_of(name, recipe.shards, bucket.owner) for name, bucket in recipe.corpus.buckets.items()]


def shards_of(name: str, params: Shards, owner: str) -> Stage:
    """Return the stage that writes the token shards of one bucket."""
    return Stage(
        asset=f"{name}/shards",
        deps=("tokenizer", "tokenizer/audit", f"{name}/curated", *_sides(name, params).values()),
        make=partial(_make_shards, name, params),
        version=shards.VERSION,
        params=params.identity(),
        libraries=fingerprint.libraries(*encode.LIBRARIES),
        group="tokens",
        description=f"Tokens of the bucket {name}, little-endian, with an end-of-text token after each document.",
        owner=owner,
        kinds=("binary",),
        suite=_suite_shards,
        present=_present_shards,
    )


def _make_shards(name: str, params: Shards, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    sides = {side: inputs[key] for side, key in _sides(name, params).items()}
    return shards.run(ctx, name, params, inputs["tokenizer"], inputs[f"{name}/curated"], sides)


def _sides(name: str, params: Shards) -> dict[str, str]:
    """Return the sidecars by which a bucket is divided into streams, as stage -> asset. The result is empty if the
    recipe names no axes."""
    return {side: f"{name}/{side}" for side in sidecars_of(params.axes)}


def _suite_shards(made: Manifest, inputs: Inputs) -> Suite:
    width = made.stats["bytes_per_token"]
    rows = [row for stream in streams_of(made) for row in _shard_rows(made, stream, width)]
    most = max((row["bytes"] for row in rows), default=0)
    total = {"counted": sum(row["tokens"] for row in rows), "recorded": made.stats["tokens"]}
    rows = [{**row, **total} for row in rows]
    if not rows and not made.stats["tokens"]:  # every document was removed; the funnel warns with the rule
        return Suite(f"shards-{made.asset.split('/')[0]}", [total], [equal_columns("counted", "recorded")])
    expectations = [
        rows_between(1),
        between("remainder", 0, 0),
        between("tokens", 1, None),
        between("even", 0, max(width, most // 100)),
        equal_columns("counted", "recorded"),
    ]
    return Suite(f"shards-{made.asset.split('/')[0]}", rows, expectations)


def _shard_rows(made: Manifest, stream: Stream, width: int) -> list[dict[str, int]]:
    """Return one row per shard of a stream. `even` is the number of bytes by which the shard exceeds the smallest
    shard."""
    sizes = [part.blob.bytes for part in made.named(f"{stream.folder}shard-")]
    return [
        {"bytes": size, "width": width, "tokens": size // width, "remainder": size % width, "even": size - min(sizes)}
        for size in sizes
    ]


def _present_shards(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[one.name, one.documents, one.tokens] for one in streams_of(made)]
    return {"streams": markdown(table(["stream", "documents", "tokens"], rows))}


#: Warn if the padding ratio exceeds this share of the targets.
MOST_PADDING = 0.01


def packing_stages(recipe: Recipe) -> list[Stage]:
    """Return one packing stage per bucket. The result is empty if documents are concatenated, because positions are
    then computed without an index."""
    if recipe.mixture is None or recipe.mixture.packing == "concatenate":
        return []
    return [packing_of(name, recipe, bucket.owner) for name, bucket in recipe.corpus.buckets.items()]


def packing_of(name: str, recipe: Recipe, owner: str) -> Stage:
    """Return the stage that packs the documents of one bucket into sequences."""
    sequence_tokens = recipe.required_mixture().sequence_tokens
    return Stage(
        asset=f"{name}/packed",
        deps=(f"{name}/shards",),
        make=lambda ctx, inputs, _: packing.run(ctx, name, sequence_tokens, inputs[f"{name}/shards"]),
        version=packing.VERSION,
        params={"sequence_tokens": sequence_tokens},
        group="tokens",
        description=f"Index of the documents of {name} in sequences of {sequence_tokens} tokens, packed by best fit.",
        owner=owner,
        kinds=("arrow",),
        schema=packing.SCHEMA,
        suite=_suite_packing,
        present=_present_packing,
    )


def _suite_packing(made: Manifest, inputs: Inputs) -> Suite:
    rows = [
        {
            **counts,
            "accounted": counts["tokens"] + counts["padding"] + counts["masked"],
            "padding_share": counts["padding"] / max(counts["targets"], 1),
        }
        for counts in made.stats["streams"].values()
    ]
    expectations = [
        equal_columns("accounted", "targets"),  # every token is a target exactly once
        equal_columns("starts", "documents"),
        between("split_fitting", 0, 0),
        between("padding_share", 0, MOST_PADDING, "warning"),
    ]
    return Suite(f"packed-{made.asset.split('/')[0]}", rows, expectations)


def _present_packing(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("sequences", "tokens", "padding", "masked", "documents", "split_documents")
    rows = [
        [label or "all", *(f"{counts[name]:,}" for name in names)] for label, counts in made.stats["streams"].items()
    ]
    return {"packing": markdown(table(["stream", *names], rows))}


def canary_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that generate the canary texts and tokenize them. The result is empty if the recipe has no
    canaries."""
    if recipe.corpus.canaries is None:
        return []
    owner = shared_owner(recipe)
    copies = Stage(
        asset=planted_canaries.ASSET,
        deps=("tokenizer",),
        make=partial(_make_canaries, recipe),
        version=planted_canaries.VERSION,
        params=recipe.corpus.canaries.model_dump(mode="json") | _canary_rows(recipe),
        libraries=fingerprint.libraries("tokenizers"),
        group="curated",
        description="Generated texts that measure memorization, each with a fixed number of copies and randomly "
        "included or excluded. They are not part of the corpus or its counts.",
        owner=owner,
        kinds=("parquet",),
        schema=DOCUMENT_SCHEMA,
        suite=_suite_canaries,
        present=_present_canaries,
    )
    cut = shards_of(CANARIES, recipe.shards.model_copy(update={"axes": ()}), owner)
    best_fit = recipe.required_mixture().packing == "best-fit"
    packed = [packing_of(CANARIES, recipe, owner)] if best_fit else []
    return [copies, cut, *packed]


def _canary_rows(recipe: Recipe) -> dict[str, Any]:
    mixture = recipe.required_mixture()
    return {
        "sequence_tokens": mixture.sequence_tokens,
        "row_tokens": sorted({length for _, length in lengths(recipe.training)}),
        "concatenated": mixture.packing == "concatenate",
    }


def _make_canaries(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    assert recipe.corpus.canaries is not None
    lexis = lexis_of(ctx.store, inputs["tokenizer"])
    return planted_canaries.run(ctx, recipe.corpus.canaries, inputs["tokenizer"], lexis, **_canary_rows(recipe))


def _suite_canaries(made: Manifest, inputs: Inputs) -> Suite:
    stats = made.stats
    row = {
        "documents": stats["documents"],
        "accounted": stats["copies"] + stats["fillers"],
        "planted": stats["planted"],
        "out": stats["canaries"] - stats["planted"],
    }
    expectations = [equal_columns("documents", "accounted"), between("planted", 1, None), between("out", 1, None)]
    return Suite(CANARIES, [row], expectations)


def _present_canaries(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("canaries", "planted", "copies", "fillers", "references", "document_tokens")
    return {"planted": markdown(table(["fact", "value"], [[name, made.stats[name]] for name in names]))}


NO_TOKENS = "bucket {} has no tokens; its weight goes to the other buckets"


def mixture_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that computes the mixture of buckets."""
    params, begun = recipe.required_mixture(), recipe.training.initial
    replays = bool(begun and begun.replay)
    return [
        Stage(
            asset="mixture",
            deps=(
                *(*each(recipe, *_kinds(recipe)), *planted(recipe, *_kinds(recipe))),
                *((initial.ASSET, "tokenizer") if replays else ()),
            ),
            make=partial(_make_mixture, recipe),
            version=mixture.VERSION,
            params=params.model_dump(mode="json") | ({"replay": begun.replay} if begun and replays else {}),
            group="mixture",
            description=f"{params.total_tokens:,} tokens in {len(params.phases)} phases.",
            owner=shared_owner(recipe),
            kinds=("python",),
            suite=_suite_mixture,
            present=_present_mixture,
        )
    ]


def _make_mixture(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    packed = read_by_run(recipe, inputs, "packed") if "packed" in _kinds(recipe) else None
    own = [CANARIES] if recipe.corpus.canaries else []
    params, shards, begun = recipe.required_mixture(), read_by_run(recipe, inputs, "shards"), recipe.training.initial
    if begun is None or not begun.replay:
        return mixture.run(ctx, params, shards, packed, own)
    parent = initial.of_parent(ctx, inputs[initial.ASSET], inputs["tokenizer"])
    indexes = (
        {}
        if packed is None
        else {bucket: packing.run(ctx, bucket, params.sequence_tokens, made) for bucket, made in parent.shards.items()}
    )
    for made in (*parent.shards.values(), *indexes.values()):
        ctx.refs.save(made)
    asked = parent.sequences(begun.replay, params.total_tokens // params.sequence_tokens)
    say(f"replayed: {sum(asked.values())} sequences of {', '.join(parent.shards)}")
    return mixture.run(ctx, params, shards | parent.shards, (packed or {}) | indexes, own, asked)


def _kinds(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the stages in every bucket that the mixture reads."""
    return ("shards",) if recipe.required_mixture().packing == "concatenate" else ("shards", "packed")


def _suite_mixture(made: Manifest, inputs: Inputs) -> Suite:
    # Counts are integers: a short phase can deviate from its weights by a few sequences.
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


def _present_mixture(ctx: Context, made: Manifest) -> dict[str, Any]:
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
