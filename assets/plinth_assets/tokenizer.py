"""`tokenizer` and `tokenizer/audit`."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.tokens.tokenizer import audit, tokenizer
from plinth.tokens.tokenizer.vocabulary import DEAD_TOKENS
from plinth_assets.framework.expectations import Suite, between, no_nulls, rows_between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage

KINDS = {
    "bpe-bytes": "Byte-level BPE",
    "bpe-fallback": "BPE with byte fallback",
    "unigram": "Unigram pieces with byte fallback",
}
#: Models whose tokenizer a run may keep, by the kind of tokenizer that asks for it, which is also their asset.
KEPT = {"initial": "the weights that the run begins from", "teacher": "the model that the run learns from"}


def stages(recipe: Recipe) -> list[Stage]:
    """Trained on curated text, then audited before anything is built on it."""
    params, owner = recipe.tokenizer, shared_owner(recipe)
    return [
        _kept(params.kind, owner) if params.kind in KEPT else _trained(recipe, owner),
        Stage(
            asset="tokenizer/audit",
            deps=("tokenizer", *each(recipe, "curated", "documents", "language")),
            make=partial(_make_audit, recipe),
            version=audit.VERSION,
            params=params.model_dump(mode="json"),
            libraries=fingerprint.libraries("unicode", "tokenizers"),
            group="tokens",
            description="Fertility by bucket, language and domain; round trip, digits, white space, dead tokens.",
            owner=owner,
            kinds=("python",),
            suite=_suite,
            present=_present,
        ),
    ]


def _trained(recipe: Recipe, owner: str) -> Stage:
    params = recipe.tokenizer
    return Stage(
        asset="tokenizer",
        deps=each(recipe, "curated"),
        make=partial(_make, recipe),
        version=tokenizer.VERSION,
        params=tokenizer.step(params).params,
        libraries=tokenizer.step(params).libraries,
        group="tokens",
        description=f"{KINDS[params.kind]}, {params.vocab_size:,} entries, trained on a sample of every bucket.",
        owner=owner,
        kinds=("huggingface",),
    )


def _kept(model: str, owner: str) -> Stage:
    return Stage(
        asset="tokenizer",
        deps=(model,),
        make=partial(_keep, model),
        version=tokenizer.VERSION,
        params={"kind": model},
        group="tokens",
        description=f"The tokenizer of {KEPT[model]}.",
        owner=owner,
        kinds=("huggingface",),
    )


def _keep(model: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return tokenizer.of_model(ctx, inputs[model])


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return tokenizer.run(ctx, recipe.tokenizer, by_bucket(recipe, inputs, "curated"))


def _make_audit(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated, documents = by_bucket(recipe, inputs, "curated"), by_bucket(recipe, inputs, "documents")
    language = by_bucket(recipe, inputs, "language")
    return audit.run(ctx, recipe.tokenizer, inputs["tokenizer"], curated, documents, language)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """A bucket that ends empty is not measured: a warning."""
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


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    shown = {}
    for axis in ("buckets", "languages", "domains"):
        rows = [[name, facts["fertility"], facts["bytes_per_token"]] for name, facts in made.stats[axis].items()]
        shown[axis] = markdown(table([axis, "fertility", "bytes per token"], rows))
    rows = [
        [DEAD_TOKENS[kind], made.stats[f"{kind}_tokens"], "  ".join(made.stats[f"{kind}_examples"][:8])]
        for kind in DEAD_TOKENS
    ]
    shown["tokens"] = markdown(table(["tokens", "how many", "such as"], rows))
    space = made.stats["whitespace"]
    rows = [[name, count] for name, count in space["tokens"].items()]
    rows += [
        ["longest run of spaces", space["longest_run"]],
        ["longest run of digits", made.stats["digits"]["longest"]],
    ]
    shown["white space and digits"] = markdown(table(["text", "tokens"], rows))
    return shown
