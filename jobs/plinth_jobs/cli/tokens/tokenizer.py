"""`plinth tokens tokenizer`: the audit, or the tokens of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context


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
    """Show the audit: tokens per word by bucket, language and domain, dead tokens, white space, digits."""
    from plinth_jobs.cli import output

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
    """The tokens of a text: id, and bytes in hexadecimal.

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
    from plinth.tokens.tokenizer.audit.vocabulary_audit import DEAD_TOKENS
    from plinth_jobs.cli import output

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
    output.table(("tokens", "how many", "such as"), dead, right=("how many",))
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
    for line in stats.get("unjudged", ()):  # absent where an older version audited
        output.say(f"note: {line}")


def _facts(facts: Mapping[str, Any]) -> list[str]:
    numbers = [facts[key] for key in ("fertility", "bytes_per_token", "characters_per_token")]
    return [*("" if number is None else f"{number:.3f}" for number in numbers), f"{facts['fragment_share'] or 0:.2%}"]
