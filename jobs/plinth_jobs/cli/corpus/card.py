"""`plinth corpus card`: the data card of the corpus."""

from __future__ import annotations

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    epilog=examples(
        "plinth corpus card", "plinth corpus card > DATA_CARD.md", "plinth corpus card --json | jq .toxicity"
    )
)
@shared
@json_option
def card(settings: Settings, as_json: bool) -> None:
    """Print the data card of the corpus in Markdown: its text by bucket, and what it was screened for.

    `--json` prints the screening alone, by subject.
    """
    from plinth_assets.data_card import ASSET, text_of
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = ctx.refs.current(ASSET)
    if as_json:
        output.emit_json(made.stats["screening"])
    else:
        output.line(text_of(ctx, made), end="")
