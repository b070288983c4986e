"""`plinth verify`: every link from a target to its raw sources."""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context

ALIASES = {"release": "champion", "champion": "champion", "canary": "canary"}


@click.command(
    epilog=examples(
        "plinth verify release",
        "plinth verify demo/1",
        "plinth verify web/shards --fast",
        "plinth verify workspace/models/3fa9c1d2e0b4",
    )
)
@click.argument("target")
@shared
@recipe_option
@click.option("--fast", is_flag=True, help="Check presence and length of every blob without reading it.")
@json_option
def verify(settings: Settings, target: str, fast: bool, as_json: bool) -> None:
    """Verify every link from TARGET back to its raw sources; name the first broken one.

    TARGET is `release` (or `canary`), a model version NAME/VERSION or NAME@ALIAS, a model directory, an
    asset, or a digest. Exit code 8 when a link, a signature or the record of the release is broken.
    """
    from jobs.cli import output

    proved = _verified(settings, settings.context(), target, fast)
    if as_json:
        output.emit_json(proved)
        return
    output.say(f"{target} holds, down to its raw sources.")
    output.facts({name: value for name, value in proved.items() if not isinstance(value, dict | list)})
    for name, digest in proved.get("sources", {}).items() if isinstance(proved.get("sources"), dict) else ():
        output.say(f"  {name}  {digest[:16]}")


def _verified(settings: Settings, ctx: Context, target: str, fast: bool) -> dict[str, Any]:
    """Models through their signature, everything else through its lineage."""
    from plinth.provenance import lineage
    from registry.verified import verify_model

    if target in ALIASES:
        target = f"{settings.load_recipe().required_release().name}@{ALIASES[target]}"
    if ctx.refs.ref(target) is not None:
        return lineage.verify(ctx, ctx.refs.current(target), fast=fast).model_dump(mode="json")
    named = "@" in target or "/" in target or Path(target).is_dir()
    if named or any(ctx.workspace.models.glob(f"{target[:12]}*")) or not set(target) <= set(string.hexdigits):
        return verify_model(ctx, target, deep=not fast).model_dump(mode="json")
    return lineage.verify(ctx, target, fast=fast).model_dump(mode="json")
