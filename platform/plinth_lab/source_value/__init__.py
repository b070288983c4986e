"""Value of a new source, from a bounded sample, and from runs with the source and without it.

    sample      a bounded sample of a new source, processed by the pipeline up to the policy; its overlap with the
                corpus: near duplicates and known word n-grams
    proxy       the gain of a byte model on held-out text from the sample, compared with the same amount of corpus text
    assessment  the report: overlap, verdicts, proxy, with intervals
    question    the key `source` of an experiment: price and share, and its arms; samples that decide the question
    verdict     the verdict: buy, do not buy, or not decided, by corrected intervals; its tile on the index page

This package also defines the command `plinth corpus source`, which imports the other modules when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.corpus.sources.parameters import Bucket
    from plinth.recipe.recipe import Recipe


def show_verdict(settings: Settings, file: Path, as_json: bool) -> None:
    """Show the verdict of an experiment on a source, and rewrite the experiment's page.

    Raises:
        MissingError: the experiment was not run, or changed after its run.
    """
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiments
    from plinth_lab.experiments import stages as wiring

    ctx = settings.context()
    loaded, arms = experiments.load(file)
    made = experiments.answer_of(ctx, loaded, arms)
    page = wiring.show(ctx, loaded, arms, made)
    if as_json:
        output.emit_json({"digest": made.digest, "page": str(page), "file": str(file), **made.stats["value"]})
        return
    say_verdict(made.stats["value"])
    output.facts({"experiment": file, "page": page.absolute().as_uri()})


def say_verdict(found: Mapping[str, Any]) -> None:
    """Print the verdict on a source with its reason, gains, regressions and prices."""
    from plinth_jobs.cli import output
    from plinth_lab.source_value.verdict import SourceVerdict, priced

    verdict = SourceVerdict.model_validate(found)
    output.heading(verdict.verdict)
    output.say(verdict.reason)
    rows = [
        (
            one.use, f"{verdict.share[one.use]:.1%}",
            "–" if one.gain is None else f"{one.gain.value:+.4f} ({one.gain.low:+.4f} to {one.gain.high:+.4f})",
            "–" if one.smallest is None else f"{one.smallest:.2g}",
            priced(one.per_bit, verdict.currency, 0.001),
        )
        for one in verdict.gains
    ]  # fmt: skip
    output.table(("use", "share", "gain, bits per byte", "minimum detectable", "price of 0.001"), rows)
    worse = [one for one in verdict.changes if one.worse]
    for one in worse:
        output.say(f"worse, {one.use}: {one.measure} {one.change.value:+.3g}")
    facts = {
        "price": f"{verdict.price:,.6g} {verdict.currency}",
        "a million effective tokens": priced(verdict.tokens.per_token, verdict.currency, 1e6),
        "regressions": f"{len(worse)} of {len(verdict.changes)} measures",
    }
    if verdict.unmeasured:
        facts["not measured"] = "; ".join(verdict.unmeasured)
    output.facts(facts)


KINDS = ("warc", "html", "pdf", "latex", "jsonl", "parquet", "text", "tree")


@group(
    short_help="Estimate the value of a new source from a sample.",
    epilog=examples("plinth corpus source value /data/forum.jsonl --kind jsonl --licence CC-BY-4.0"),
)
def source() -> None:
    """Estimate the value of new sources."""


@source.command(
    epilog=examples(
        "plinth corpus source value /data/forum.jsonl --kind jsonl --licence CC-BY-4.0",
        "plinth corpus source value s3://crawl/2026-46 --kind warc --licence CC0-1.0 --sample-mb 64",
        "plinth corpus source value forums --json | jq .effective",
        "plinth corpus source value /data/forum.jsonl --kind jsonl --licence CC-BY-4.0 \\\n"
        "      --price 20000 --share 0.2 --test test.jsonl --train",
        "plinth corpus source value /data/forum.jsonl --show",
    )
)
@click.argument("new", metavar="BUCKET|PATH|URI")
@shared
@recipe_option
@click.option("--kind", type=click.Choice(KINDS), help="Input format; required for a path.")
@click.option("--licence", help="License as SPDX expression, or `per-document`; required for a path.")
@click.option(
    "--text-field", default="text", show_default=True, help="Name of the text field in JSONL and Parquet files."
)
@click.option(
    "--suffix", "suffixes", multiple=True, help="Suffix of the files to read (for the kinds tree and text). Repeatable."
)
@click.option("--policy", "policy", default="default", show_default=True, help="Policy for a path.")
@click.option(
    "--sample-mb", type=click.FloatRange(0.01, 4096), default=32.0, show_default=True, help="Sample size in MB."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed for the sample.")
@click.option("--price", type=click.FloatRange(min=0), help="One-time price for the whole source.")
@click.option("--currency", default="USD", show_default=True, help="Currency of the price.")
@click.option("--train", is_flag=True, help="Train runs with and without the source. This stores the source's text.")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="--train: source's share.")
@click.option("--test", metavar="JSONL", help="With --train: file with test text, as a path or in input/.")
@click.option("--least-gain", type=click.FloatRange(min=0), help="With --train: minimum gain, in bits per byte.")
@click.option(
    "--anneal", metavar="RUN:STEP", help="With --train: also test the source by annealing from this checkpoint."
)
@click.option("--anneal-tokens", type=click.IntRange(min=1), help="With --train: number of tokens per annealing run.")
@click.option("--seeds", type=click.IntRange(1, 64), default=3, show_default=True, help="--train: seeds per arm.")
@click.option("--side-by-side", type=click.IntRange(1, 256), default=1, help="--train: concurrent runs.")
@click.option("--show", "shown", is_flag=True, help="Show the verdict of an earlier call with --train.")
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
    price: float | None,
    currency: str,
    train: bool,
    share: float | None,
    test: str | None,
    least_gain: float | None,
    anneal: str | None,
    anneal_tokens: int | None,
    seeds: int,
    side_by_side: int,
    shown: bool,
    as_json: bool,
) -> None:
    """Run a sample of a source through the pipeline and compare it with the corpus; nothing is stored.

    The source is a bucket of the recipe that has not been run yet, or a path with --kind and --licence. The result
    shows the accepted share, the shares of text and of word 5-grams that are new to the corpus, bytes per token, and
    the gain in D_eff (effective tokens). The command also trains a small byte model with the sample or with more corpus
    text, and compares the two in bits per byte.

    With --train, the command runs an experiment with and without the source at equal tokens. The verdict is buy, do not
    buy or not decided. If the command is interrupted, run it again to continue.
    """
    from plinth_lab.source_value import question as source_question

    if shown:
        return show_verdict(settings, source_question.asked(settings.workspace, new), as_json)
    recipe = settings.load_recipe()
    bucket = recipe.corpus.buckets.get(new) or _bucket(recipe, new, kind, licence, policy, text_field, suffixes)
    if train:
        ends = {"checkpoint": anneal, "tokens": anneal_tokens} if anneal or anneal_tokens else None
        given = {"price": price, "currency": currency, "share": share, "least_gain": least_gain, "anneal": ends}
        given["sample_mb"] = sample_mb
        file = source_question.write(settings.workspace, new, bucket, settings.recipe_path(), test, given, seeds)
        _train(settings.workspace, file, side_by_side)
        return show_verdict(settings, file, as_json)
    found = _assess(settings.context(), recipe, new, bucket, round(sample_mb * 2**20), seed)
    _show_sample(new, found, price, currency, as_json)
    return None


def _train(workspace: Path, file: Path, side_by_side: int) -> None:
    from plinth.compute.engine import cores
    from plinth.compute.select_engine import Compute
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiment

    experiment.run(
        workspace, file, compute=Compute("local", cores()), side_by_side=side_by_side,
        say=lambda sentence: output.line(sentence, err=True),
    )  # fmt: skip


def _assess(ctx: Context, recipe: Recipe, new: str, bucket: Bucket, sample_bytes: int, seed: int) -> dict[str, Any]:
    from plinth.compute.engine import LocalEngine, cores
    from plinth_assets.annotate import annotator_parameters
    from plinth_lab.source_value import assessment as worth

    have = worth.known(ctx, without=new if new in recipe.corpus.buckets else None)
    ctx.engine = LocalEngine(cores())
    try:
        return worth.assess(
            ctx, bucket, recipe.corpus, annotator_parameters(recipe), have, sample_bytes=sample_bytes, seed=seed
        )
    finally:
        ctx.engine.close()


def _show_sample(new: str, found: dict[str, Any], price: float | None, currency: str, as_json: bool) -> None:
    from plinth_jobs.cli import output
    from plinth_lab.source_value.verdict import of_tokens, priced

    tokens = None if price is None else of_tokens(price, found)
    if as_json:
        return output.emit_json(found if tokens is None else {**found, "price": tokens})
    _show(new, found)
    if tokens is not None:
        output.facts({"a million effective tokens": priced(tokens.per_token, currency, 1e6)})
    train = f"`plinth corpus source value {new} --train`"
    return output.say(f"\n{train}, with the same options, compares runs with and without the source")


def _bucket(
    recipe: Recipe,
    new: str,
    kind: str | None,
    licence: str | None,
    policy: str,
    text_field: str,
    suffixes: tuple[str, ...],
) -> Bucket:
    """Return a bucket for a source path, with the minimum terms for training and for the recipe's uses."""
    from pydantic import ValidationError

    from plinth.corpus.sources.parameters import Bucket
    from plinth.errors import MissingError, RecipeError

    if kind is None or licence is None:
        have = ", ".join(recipe.corpus.buckets)
        raise MissingError(
            f"{new} is not a bucket of the recipe",
            expected=f"one of {have}, or a path with --kind and --licence",
            remedy=f"plinth corpus source value {new} --kind jsonl --licence SPDX",
        )
    if policy not in recipe.corpus.policies:
        raise MissingError(f"no policy {policy}", expected=f"one of {', '.join(recipe.corpus.policies)}")
    path = new if "://" in new else str(Path(new).absolute())
    terms = {"train": True} | {use: use in recipe.corpus.uses for use in ("redistribute", "commercial")}
    described = {"kind": kind, "path": path, "licence": licence, "terms": terms, "domain": Path(new).name or new}
    described |= {"snapshot": "new", **({"fields": {"text": text_field}} if text_field != "text" else {})}
    described |= {"suffixes": suffixes} if suffixes else {}
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
    from plinth_jobs.cli import output

    sample, accepted, density = found["sample"], found["acceptance"], found["density"]
    output.heading(f"{new}: a sample of {output.size(sample['source_bytes'])} of {output.size(sample['of_bytes'])}")
    output.facts(
        {
            "files": f"{sample['files']:,} of {sample['of_files']:,} files (or pieces of them)",
            "documents": sample["documents"],
            "parsed": f"{accepted['parsed']:.1%} of the records",
            "kept by the policy": _share(accepted["kept"]),
            "in the corpus already": f"{_share(accepted['duplicates_of_corpus'])} of kept documents",
            "repeated in the sample": f"{_share(accepted['duplicates_in_itself'])} of kept documents",
            "accepted": f"{_share(accepted['accepted'])} of documents, {_share(accepted['accepted_bytes'])} of text",
        }
    )
    if found["reasons"]:
        output.table(("reason", "documents"), [tuple(row.values()) for row in found["reasons"]], right=("documents",))
    own, held = density["new_ngrams"], density["new_ngrams_of_held_out"]
    facts = {
        "text new to the corpus": _share(density["unique_text"]),
        "new word 5-grams": f"{_share(own)} of the source; {_share(held)} of the corpus's held-out text",
    }
    if found["tokenizer"]:
        rate = found["tokenizer"]["bytes_per_token"]
        facts["bytes per token"] = f"{rate['value']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})"
        facts["bytes per token"] += f"; the corpus has {found['tokenizer']['corpus']:.2f}"
    output.heading("gain")
    output.facts({**facts, **_gain(found["effective"])})
    if found["proxy"]:
        _show_proxy(found["proxy"])


def _gain(effective: dict[str, Any]) -> dict[str, str]:
    from plinth_jobs.cli import output

    size = {name: output.size(each) for name, each in effective["bytes"].items()}
    facts = {"D_eff": f"+ {size['value']} ({size['low']} to {size['high']})"}
    if effective["gain"]:
        facts["D_eff"] += f", {_share(effective['gain'])} of the corpus's {output.size(effective['corpus_bytes'])}"
    if effective["tokens"]:
        facts["tokens"] = f"+ {effective['tokens']['value']:,.0f}"
    return facts


def _show_proxy(proxy: dict[str, Any]) -> None:
    from plinth_jobs.cli import output

    output.heading("bits per byte of held-out text under a small byte model")
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
        f"One model reads {output.size(proxy['base_bytes'])} of the corpus and then "
        f"{output.size(proxy['added_bytes'])} of the source (+source); another reads the same corpus text and then "
        "the same amount of other corpus text (+more). diff is +source minus +more; below zero, the source helps more."
    )


def _share(measure: dict[str, float]) -> str:
    return f"{measure['value']:.1%} ({measure['low']:.1%} to {measure['high']:.1%})"
