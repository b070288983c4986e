"""`plinth export restore` and `plinth export`: files out of the content store."""

from __future__ import annotations

from pathlib import Path

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Commands, Settings, examples, json_option, shared


@click.command(
    epilog=examples("plinth status --json | jq -r '.[].digest'", "plinth export restore 3fa9c1d2 /tmp/shards")
)
@click.argument("digest")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--unreleased", is_flag=True, help="Write the files of a checkpoint that is no release.")
@shared
@json_option
def restore(settings: Settings, digest: str, directory: Path, unreleased: bool, as_json: bool) -> None:
    """Write every part of the manifest DIGEST below DIRECTORY, verified.

    DIGEST may be a unique prefix; `plinth status` lists the published digests. What is tainted is not written.
    """
    from plinth.storage import dvc
    from plinth.storage.state import resolve
    from plinth_jobs.cli import output
    from plinth_registry.exports import data

    ctx = settings.context()
    data.leave(ctx, [resolve(ctx.refs, digest)], str(directory.absolute()), unreleased=unreleased)
    manifest = dvc.restore(ctx, digest, directory)
    if as_json:
        output.emit_json(
            {"asset": manifest.asset, "digest": manifest.digest, "parts": [p.name for p in manifest.parts]}
        )
    else:
        parts, total = len(manifest.parts), output.size(manifest.bytes)
        output.say(f"{manifest.asset}: {counted(parts, 'file')}, {total}, in {directory}")


class Exports(Commands):
    """`export DIRECTORY …` writes DVC pointers; the others are commands of their own."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or pointers

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["DIRECTORY", *super().list_commands(ctx)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        return args[0], command, args if command is pointers else args[1:]


@click.command(
    cls=Exports,
    epilog=examples(
        "plinth export data 'web/shards' mixture",
        "plinth export text --to corpus",
        "plinth export tokens web --format megatron --to out",
        "plinth export model release llama",
    ),
)
def export() -> None:
    """Export published assets for other programs.

    `plinth export DIRECTORY [ASSETS]`: DVC pointers. `plinth export text [BUCKETS]`: curated text with its ledger
    columns and a data card, which `plinth export verify PLACE` compares with its digests. `plinth export tokens NAME`:
    token files for other trainers. `plinth export model RELEASE FOLDER`: a release in Hugging Face's layout,
    signed, with its papers. For a folder of one of these names, write `./tokens`.
    """


@click.command("export", epilog=examples("plinth export data 'web/shards' mixture", "(cd data && dvc pull)"))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("assets", nargs=-1)
@click.option("--unreleased", is_flag=True, help="Also the checkpoint, which is no release.")
@shared
@json_option
def pointers(
    settings: Settings, directory: Path, assets: tuple[str, ...], unreleased: bool, as_json: bool
) -> None:
    """Make DIRECTORY a DVC project with pointers to ASSETS (default: all), for plain `dvc pull` (extra `dvc`).

    A checkpoint is among them with --unreleased only; what is tainted never.
    """
    from plinth.storage import dvc
    from plinth_jobs.cli import output
    from plinth_registry.exports import data

    ctx = settings.context()
    names = assets or tuple(ref.asset for ref in ctx.refs.all() if ref.asset != "checkpoint" or unreleased)
    going = [ctx.refs.current(name) for name in names]
    data.leave(ctx, going, str(directory.absolute()), unreleased=unreleased)
    written = dvc.export(ctx, going, directory)
    if as_json:
        output.emit_json([str(pointer) for pointer in written])
    else:
        output.say(f"{len(written)} pointers in {directory}; now: (cd {directory} && dvc pull)")
