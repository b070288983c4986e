"""Commands about tokens: `plinth tokens tokenizer | mixture | packing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.recipe.recipe import Recipe
    from plinth.records import Manifest
    from plinth.tokens.packing import PackingCounts


@click.command(
    epilog=examples(
        "plinth tokens tokenizer",
        "plinth tokens tokenizer --text 'x = 42'",
        "plinth tokens tokenizer --json | jq .languages",
    )
)
@click.option("-t", "--text", help="Show the tokens of this text instead of the audit.")
@shared
@json_option
def tokenizer(settings: Settings, text: str | None, as_json: bool) -> None:
    """Show the tokenizer audit: tokens per word by bucket, language and domain, dead tokens, white space, digits."""
    ctx = settings.context()
    if text is not None:
        rows = tokens_of(ctx, text)
        if as_json:
            output.emit_json(rows)
        else:
            output.table(("id", "bytes"), [(row["id"], repr(bytes.fromhex(row["bytes"]))[1:]) for row in rows])
        return
    stats = ctx.refs.current("tokenizer/audit").stats
    if as_json:
        output.emit_json(stats)
        return
    _show(stats)


def tokens_of(ctx: Context, text: str) -> list[dict[str, Any]]:
    """Return the tokens of a text, each with its ID and its bytes in hexadecimal.

    Raises:
        MissingError: no tokenizer is published.
    """
    from plinth.tokens.tokenizer import encode, tokenizer
    from plinth.tokens.tokenizer.vocabulary import token_bytes

    trained = tokenizer.load(ctx.store, ctx.refs.current(tokenizer.ASSET))
    table = token_bytes(trained)
    (ids,) = encode.encode_texts(trained, [text], "<u4")
    return [{"id": token, "bytes": table[token].hex()} for token in ids.tolist()]


def _show(stats: Mapping[str, Any]) -> None:
    from plinth.tokens.tokenizer.vocabulary import DEAD_TOKENS

    columns = ("tokens/word", "bytes/token", "characters/token", "fragments")
    for axis in ("buckets", "languages", "domains"):
        output.heading(axis)
        rows = [(name, *_facts(facts)) for name, facts in stats[axis].items()]
        output.table((axis[:-1], *columns), rows, right=columns)
    output.heading("dead tokens")
    dead = [
        (words, stats[f"{kind}_tokens"], "  ".join(stats[f"{kind}_examples"][:6]))
        for kind, words in DEAD_TOKENS.items()
    ]
    output.table(("tokens", "count", "examples"), dead, right=("count",))
    output.heading("white space and digits")
    space = stats["whitespace"]
    output.facts(
        {
            "longest run of digits": stats["digits"]["longest"],
            "longest run of spaces": space["longest_run"],
            **{f"tokens of {name.replace('_', ' ')}": count for name, count in space["tokens"].items()},
        }
    )
    for line in stats["failures"]:
        output.say(f"fails: {line}")
    for line in stats.get("unjudged", ()):  # audits by older versions lack this key
        output.say(f"note: {line}")


def _facts(facts: Mapping[str, Any]) -> list[str]:
    numbers = [facts[key] for key in ("fertility", "bytes_per_token", "characters_per_token")]
    return [*("" if number is None else f"{number:.3f}" for number in numbers), f"{facts['fragment_share'] or 0:.2%}"]


@click.command(
    epilog=examples(
        "plinth tokens mixture",
        "plinth tokens mixture --try",
        "plinth tokens mixture --streams",
        "plinth tokens mixture --course --json | jq '.course[0].realised'",
    )
)
@shared
@recipe_option
@click.option("--try", "as_written", is_flag=True, help="Preview the mixture of the current recipe.")
@click.option("--streams", is_flag=True, help="List only the streams and their numbers of tokens, without phases.")
@click.option("--course", is_flag=True, help="Also show each stream's fraction of the sequences over the run.")
@json_option
def mixture(settings: Settings, as_written: bool, streams: bool, course: bool, as_json: bool) -> None:
    """Show each bucket's and stream's fraction of the sequences, and its number of epochs, by phase.

    The fractions are exact in every block of sequences; the largest deviation from the recipe is shown with its
    position. `--try` computes the mixture of the current recipe from published shards and stores nothing.
    """
    ctx = settings.context()
    if streams:
        found = list(_streams(ctx, settings.load_recipe()))
        if as_json:
            output.emit_json(found)
        else:
            output.table(
                ("stream", "tokens", "documents"), [tuple(row.values()) for row in found], right=("tokens", "documents")
            )
        return
    if as_written or ctx.refs.ref("mixture") is None:
        settings.load_recipe().required_mixture()  # raises an error if the recipe has no mixture
    shown = describe(_tried(ctx, settings.load_recipe()) if as_written else ctx.refs.current("mixture"))
    if not course:
        shown.pop("course")
    if as_json:
        output.emit_json(shown)
    else:
        _show_mixture(shown)


def describe(made: Manifest) -> dict[str, Any]:
    """Return a mixture as JSON: phases, streams, the fractions realized over the run, and advice."""
    from plinth.tokens.mixture import mixture as arithmetic
    from plinth.tokens.mixture.apportion import advice, shares_over_run

    stats = made.stats
    shown = ("sequences", "needed", "epochs", "max_epochs")
    return {
        "tokens": stats["tokens"],
        "sequence_tokens": stats["sequence_tokens"],
        "phases": arithmetic.rows(made),
        "streams": {name: {key: own[key] for key in shown} for name, own in stats["buckets"].items()},
        "realised": stats["realised"],
        "course": shares_over_run(stats),
        "advice": advice(stats),
    }


def _shards(ctx: Context, recipe: Recipe, kind: str = "shards") -> dict[str, Manifest]:
    return {bucket: ctx.refs.current(f"{bucket}/{kind}") for bucket in recipe.corpus.buckets}


def _tried(ctx: Context, recipe: Recipe) -> Manifest:
    from plinth.tokens.mixture import mixture as arithmetic

    params = recipe.required_mixture()
    packed = _shards(ctx, recipe, "packed") if params.packing == "best-fit" else None
    return arithmetic.run(ctx, params, _shards(ctx, recipe), packed)


def _streams(ctx: Context, recipe: Recipe) -> Iterator[dict[str, Any]]:
    from plinth.tokens.shards.parameters import streams_of_all

    for stream in streams_of_all(_shards(ctx, recipe)):
        yield {"stream": stream.name, "tokens": stream.tokens, "documents": stream.documents}


def _show_mixture(shown: Mapping[str, Any]) -> None:
    output.heading(f"{shown['tokens']:,} tokens")
    columns = ("phase", "stream", "target", "actual", "tokens")
    output.table(columns, _phase_rows(shown["phases"]), right=columns[2:])
    output.heading("text")
    width = shown["sequence_tokens"]
    columns = ("stream", "text tokens", "tokens seen", "epochs", "max epochs")
    rows = (
        (name, own["sequences"] * width, own["needed"] * width, f"{own['epochs']:.3f}", f"{own['max_epochs']:g}")
        for name, own in shown["streams"].items()
    )
    output.table(columns, rows, right=columns[1:])
    output.say(_nearness(shown["realised"]))
    for row in shown.get("course", ()):
        shares = "  ".join(f"{name} {share:.1%}" for name, share in row["realised"].items())
        output.say(f"{row['stop'] * width:>16,}  {shares}")
    for sentence in shown["advice"]:
        output.say(output.coloured("note ", "yellow"), sentence)


def _phase_rows(phases: list[dict[str, Any]]) -> Iterator[tuple[object, ...] | None]:
    last = None
    for row in phases:
        if not row["weight"] and not row["tokens"]:  # not in this phase
            continue
        if last not in (None, row["phase"]):
            yield None
        first, last = row["phase"] != last, row["phase"]
        share = f"{row['share']:.3%}"
        yield (row["phase"] if first else None), row["bucket"], f"{row['weight']:.3%}", share, row["tokens"]


def _nearness(realised: Mapping[str, Any]) -> str:
    off, blocks = realised["max_share_error"], realised["every_blocks"]
    where = f" ({realised['stream']}, from sequence {realised['first']:,})" if realised["stream"] else ""
    return (
        f"Maximum difference between a stream's share and the recipe: {off:.4%} over {blocks:,} blocks{where}, "
        f"{realised['rest_share_error']:.4%} over fewer blocks at the ends of phases. Maximum drift: "
        f"{realised['max_drift_sequences']:.1f} sequences."
    )


@click.command(epilog=examples("plinth tokens packing", "plinth tokens packing -s 2048 -s 8192 --json | jq .[0]"))
@click.option(
    "-s",
    "--sequence-tokens",
    "widths",
    type=click.IntRange(min=8),
    multiple=True,
    default=(512, 2048, 4096, 8192),
    show_default=True,
    help="Sequence length in tokens; repeatable.",
)
@shared
@json_option
def packing(settings: Settings, widths: tuple[int, ...], as_json: bool) -> None:
    """Compare both packings of every stream by their fractions of padded, masked, dropped and cut tokens.

    The fractions are computed from document lengths, and nothing is written. A document is cut `needlessly` if it would
    have fit into one sequence.
    """
    rows = packings(settings.context(), widths)
    if as_json:
        output.emit_json(rows)
        return
    shares = ("padding", "masked", "dropped", "cut", "cut_needlessly")
    columns = ("stream", "S", "sequences", *shares[:-1], "needlessly")
    for packing_name in ("concatenate", "best-fit"):
        output.heading(packing_name)
        shown = [
            (row["stream"], row["sequence_tokens"], row["sequences"], *(f"{row[name]:.2%}" for name in shares))
            for row in rows
            if row["packing"] == packing_name
        ]
        output.table(columns, shown, right=columns[1:])


def packings(ctx: Context, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return one row per stream, sequence length and packing, with fractions of targets, tokens and documents.

    Raises:
        MissingError: no shards are published.
    """
    from plinth.tokens.packing import measure, measure_best_fit
    from plinth.tokens.shards.parameters import streams_of
    from plinth.tokens.shards.reader import ShardReader

    published = [ref.asset for ref in ctx.refs.all() if ref.asset.endswith("/shards")]
    if not published:
        raise MissingError("no bucket has shards yet", remedy="run `plinth run --select '*/shards'`")
    rows = []
    for asset in sorted(published):
        shards = ctx.refs.current(asset)
        for stream in streams_of(shards):
            for width in widths:
                reader = ShardReader(ctx.store, shards, stream.name)
                rows.append(_row(stream.name, width, "concatenate", measure(reader, width)))
                rows.append(_row(stream.name, width, "best-fit", measure_best_fit(ctx.store, shards, stream, width)))
    return rows


def _row(stream: str, width: int, name: str, made: PackingCounts) -> dict[str, Any]:
    targets, documents = max(made.targets, 1), max(made.documents, 1)
    return {
        "stream": stream,
        "sequence_tokens": width,
        "packing": name,
        "sequences": made.sequences,
        "padding": made.padding / targets,
        "masked": made.masked / targets,
        "dropped": made.dropped / max(made.tokens, 1),
        "cut": made.split_documents / documents,
        "cut_needlessly": made.split_fitting / documents,
    }
