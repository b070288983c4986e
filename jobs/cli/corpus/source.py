"""`plinth source value`: the value of a new source, from a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.corpus.sources.parameters import Bucket
    from plinth.recipe.recipe import Recipe

KINDS = ("warc", "html", "pdf", "latex", "jsonl", "parquet", "text", "tree")


@click.group(epilog=examples("plinth source value /data/forum.jsonl --kind jsonl --licence CC-BY-4.0"))
def source() -> None:
    """New sources."""


@source.command(
    epilog=examples(
        "plinth source value /data/forum.jsonl --kind jsonl --licence CC-BY-4.0",
        "plinth source value s3://crawl/2026-46 --kind warc --licence CC0-1.0 --policy default --sample-mb 64",
        "plinth source value forums --json | jq .effective",
    )
)
@click.argument("new", metavar="BUCKET|PATH|URI")
@shared
@recipe_option
@click.option("--kind", type=click.Choice(KINDS), help="Kind of the reader; required for a path.")
@click.option("--licence", help="SPDX expression or `per-document`; required for a path.")
@click.option("--text-field", default="text", show_default=True, help="Text field of JSONL and Parquet.")
@click.option("--suffix", "suffixes", multiple=True, help="File suffixes to read, of trees and text.")
@click.option("--policy", "policy", default="default", show_default=True, help="Policy to apply to a path.")
@click.option(
    "--sample-mb", type=click.FloatRange(0.01, 4096), default=32.0, show_default=True, help="Size of the sample."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed takes another sample.")
@json_option
def value(
    settings: Settings,
    new: str,
    kind: str | None,
    licence: str | None,
    text_field: str,
    suffixes: tuple[str, ...],
    policy: str,
    sample_mb: float,
    seed: int,
    as_json: bool,
) -> None:
    """Run a sample of a source through the pipeline and compare it with the corpus; nothing is stored.

    The source is a bucket of the recipe that has not been run yet, or a path with --kind and --licence. The result
    has the accepted share, the shares of text and of word 5-grams new to the corpus, bytes per token, the gain in
    D_eff, and the bits per byte of a small byte model trained with it or with more of the corpus.
    """
    from assets.annotate import annotator_parameters
    from jobs.cli import output
    from plinth.compute.engine import LocalEngine
    from plinth.compute.threads import cores
    from plinth.experiment.value import value as worth

    ctx, recipe = settings.context(), settings.load_recipe()
    bucket = recipe.corpus.buckets.get(new) or _bucket(recipe, new, kind, licence, policy, text_field, suffixes)
    have = worth.known(ctx, without=new if new in recipe.corpus.buckets else None)
    ctx.engine = LocalEngine(cores())
    try:
        found = worth.assess(
            ctx,
            bucket,
            recipe.corpus,
            annotator_parameters(recipe),
            have,
            sample_bytes=round(sample_mb * 2**20),
            seed=seed,
        )
    finally:
        ctx.engine.close()
    if as_json:
        output.emit_json(found)
    else:
        _show(new, found)


def _bucket(
    recipe: Recipe,
    new: str,
    kind: str | None,
    licence: str | None,
    policy: str,
    text_field: str,
    suffixes: tuple[str, ...],
) -> Bucket:
    """A path as a bucket; its terms are the least that training and the recipe's uses need."""
    from pydantic import ValidationError

    from plinth.corpus.sources.parameters import Bucket
    from plinth.errors import MissingError, RecipeError

    if kind is None or licence is None:
        have = ", ".join(recipe.corpus.buckets)
        raise MissingError(
            f"{new} is not a bucket of the recipe",
            expected=f"one of {have}; or a path with --kind and --licence",
            remedy=f"plinth source value {new} --kind jsonl --licence SPDX",
        )
    if policy not in recipe.corpus.policies:
        raise MissingError(f"no policy {policy}", expected=f"one of {', '.join(recipe.corpus.policies)}")
    path = new if "://" in new else str(Path(new).absolute())
    terms = {"train": True} | {use: use in recipe.corpus.uses for use in ("redistribute", "commercial")}
    described = {"kind": kind, "path": path, "licence": licence, "terms": terms, "domain": Path(new).name or new}
    described |= {"snapshot": "new", "text_field": text_field, "suffixes": suffixes}
    try:
        return Bucket.model_validate(
            {"description": new, "owner": "nobody yet", "sources": [described], "policy": policy}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(
            f"{new}: {first['loc'][-1]!s}: {first['msg'].removeprefix('Value error, ')}", found=first.get("input")
        ) from error


def _show(new: str, found: dict[str, Any]) -> None:
    from jobs.cli import output

    sample, accepted, density = found["sample"], found["acceptance"], found["density"]
    output.heading(f"{new}: a sample of {output.size(sample['source_bytes'])} of {output.size(sample['of_bytes'])}")
    output.facts(
        {
            "files": f"{sample['files']:,} of {sample['of_files']:,} (or pieces of them)",
            "documents": sample["documents"],
            "parsed": f"{accepted['parsed']:.1%} of the records",
            "kept by the policy": _share(accepted["kept"]),
            "in the corpus already": f"{_share(accepted['duplicates_of_corpus'])} of what is kept",
            "repeated in itself": f"{_share(accepted['duplicates_in_itself'])} of what is kept",
            "accepted": f"{_share(accepted['accepted'])} of documents, {_share(accepted['accepted_bytes'])} of text",
        }
    )
    if found["reasons"]:
        output.table(("reason", "documents"), [tuple(row.values()) for row in found["reasons"]], right=("documents",))
    own, held = density["new_ngrams"], density["new_ngrams_of_held_out"]
    facts = {
        "text the corpus lacks": _share(density["unique_text"]),
        "new word 5-grams": f"{_share(own)}; held-out text of the corpus has {_share(held)}",
    }
    if found["tokenizer"]:
        rate = found["tokenizer"]["bytes_per_token"]
        facts["bytes per token"] = f"{rate['value']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})"
        facts["bytes per token"] += f"; the corpus has {found['tokenizer']['corpus']:.2f}"
    output.heading("gain")
    output.facts({**facts, **_gain(found["effective"])})
    if found["proxy"]:
        _show_proxy(found["proxy"])
    output.say(
        "\nTo confirm it with a training run, add the bucket to a copy of the recipe, then "
        "`plinth run -r copy.yaml -w other --select evaluation`, and compare bits per byte."
    )


def _gain(effective: dict[str, Any]) -> dict[str, str]:
    from jobs.cli import output

    size = {name: output.size(each) for name, each in effective["bytes"].items()}
    facts = {"D_eff": f"+ {size['value']} ({size['low']} to {size['high']})"}
    if effective["gain"]:
        facts["D_eff"] += f", {_share(effective['gain'])} of the corpus's {output.size(effective['corpus_bytes'])}"
    if effective["tokens"]:
        facts["tokens"] = f"+ {effective['tokens']['value']:,.0f}"
    return facts


def _show_proxy(proxy: dict[str, Any]) -> None:
    from jobs.cli import output

    output.heading("bits per byte of held-out text, small byte model")
    columns = ("slice", "corpus", "+source", "+more", "diff", "from", "to")
    rows = [
        (
            name,
            f"{one['base']:.3f}",
            f"{one['with']:.3f}",
            f"{one['instead']:.3f}",
            f"{one['beats_more_of_the_same']['value']:+.4f}",
            f"{one['beats_more_of_the_same']['low']:+.4f}",
            f"{one['beats_more_of_the_same']['high']:+.4f}",
        )
        for name, one in proxy["slices"].items()
    ]
    output.table(columns, rows, right=columns[1:])
    output.say(
        f"{output.size(proxy['base_bytes'])} of the corpus, and {output.size(proxy['added_bytes'])} added: of the "
        "source, or more of the corpus. Below zero, the source is the better addition."
    )


def _share(measure: dict[str, float]) -> str:
    return f"{measure['value']:.1%} ({measure['low']:.1%} to {measure['high']:.1%})"
