"""`plinth canary`: give a canary back."""

from __future__ import annotations

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared
from jobs.cli.release.release import person


@click.command(epilog=examples("plinth canary --return --by ops@example.org --reason 'slower answers on code'"))
@shared
@recipe_option
@click.option("--return", "back", is_flag=True, required=True, help="Take the canary's place away.")
@person()
@json_option
def canary(settings: Settings, back: bool, by: str, reason: str, as_json: bool) -> None:
    """Give the canary of the release back: the champion stays, and the version does not verify any more.

    `plinth promote --stage canary` puts a version on trial. Repeat the command after a crash: it completes it.
    """
    from jobs.cli import output
    from registry import api

    made = api.return_canary(settings.context(), settings.load_recipe(), by, reason)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.model} version {made.previous} was given back; champion: {made.version or 'none'}")
