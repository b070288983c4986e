"""`plinth restore` and `plinth export`: bytes out of the content store."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.cli.options import Settings, examples, json_option, shared


@click.command(epilog=examples("plinth status --json | jq -r '.[].digest'", "plinth restore 3fa9c1d2 /tmp/shards"))
@click.argument("digest")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@shared
@json_option
def restore(settings: Settings, digest: str, directory: Path, as_json: bool) -> None:
    """Write every part of the manifest DIGEST below DIRECTORY, verified.

    DIGEST may be shortened while it stays unambiguous; `plinth status` lists what is published.
    """
    from jobs.cli import output
    from plinth.storage import dvc

    manifest = dvc.restore(settings.context(), digest, directory)
    if as_json:
        output.emit_json(
            {"asset": manifest.asset, "digest": manifest.digest, "parts": [p.name for p in manifest.parts]}
        )
    else:
        parts, total = len(manifest.parts), output.size(manifest.bytes)
        output.say(f"{manifest.asset}: {parts} files, {total}, in {directory}")


@click.command(epilog=examples("plinth export data 'web/shards' mixture", "(cd data && dvc pull)"))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("assets", nargs=-1)
@shared
@json_option
def export(settings: Settings, directory: Path, assets: tuple[str, ...], as_json: bool) -> None:
    """Make DIRECTORY a DVC project with a pointer for each of ASSETS (default: all), for a plain `dvc pull`."""
    from jobs.cli import output
    from plinth.storage import dvc

    ctx = settings.context()
    names = assets or tuple(ref.asset for ref in ctx.refs.all())
    pointers = dvc.export(ctx, [ctx.refs.current(name) for name in names], directory)
    if as_json:
        output.emit_json([str(pointer) for pointer in pointers])
    else:
        output.say(f"{len(pointers)} pointers in {directory}; now: (cd {directory} && dvc pull)")
