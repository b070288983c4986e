"""`plinth export tokens`: the shards of a bucket or of a run, for other trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared, unsigned_option

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest


@click.command(
    epilog=examples(
        "plinth export tokens web --format megatron --to /data/web",
        "plinth export tokens latest --format shards --to s3://bucket/shards",
    )
)
@click.argument("name")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["megatron", "bin", "shards"]),
    required=True,
    help="megatron: .bin and .idx; bin: tokens alone and document offsets (.npy); shards: files named as the parts.",
)
@click.option("--to", required=True, help="Folder or s3:// prefix to write below.")
@unsigned_option
@shared
@json_option
def tokens(settings: Settings, name: str, kind: Any, to: str, unsigned: bool, as_json: bool) -> None:
    """Write the tokens of NAME (a bucket, or a run: `latest`, its id or a prefix of it) for another trainer.

    Every stream is a data set of its own. For a run, the output also has the share of sequences of each stream: the
    weights of a blend. The key of compliance signs the files (`EXPORT.json`); `plinth export verify PLACE` proves them.
    """
    from plinth.tokens.shards.export import export
    from plinth_jobs.cli import output
    from plinth_registry.exports import signed_data

    ctx = settings.context()
    shards, weights = _chosen(ctx, name)
    with signed_data.leaving(ctx, shards, to, f"tokens of {name}", unsigned=unsigned) as seal:
        written = export(ctx.store, shards, kind, to)
        digests = {name: own for one in written for name, own in one.pop("sha256").items()}
        signed = seal.sign(digests, {one.asset: one.digest for one in shards})
    for one in written:
        if weights and "stream" in one:
            one["weight"] = weights.get(one["stream"], 0.0)
    if as_json:
        output.emit_json(written)
        return
    for one in written:
        what = (
            f"{counted(one['tokens'], 'token')}, {counted(one['documents'], 'document')}"
            if "tokens" in one
            else counted(one["files"], "file")
        )
        weight = f", weight {one['weight']:.6g}" if "weight" in one else ""
        output.say(f"{one['at']}: {what}{weight}")
    output.say(f"signed: SHA-256 of EXPORT.json {signed}" if signed else "not signed: nobody can prove it elsewhere")


def _chosen(ctx: Context, name: str) -> tuple[list[Manifest], dict[str, float]]:
    """The shard sets of a bucket, or of a run with the share of each stream.

    Raises:
        MissingError: neither is there.
    """
    from plinth_jobs.runs import find_run

    if ctx.refs.ref(f"{name}/shards") is not None:
        return [ctx.refs.current(f"{name}/shards")], {}
    config = find_run(ctx, name)
    stats = ctx.refs.load(config.mixture).stats
    weights = {stream: own["needed"] / stats["sequences"] for stream, own in stats["buckets"].items()}
    return [ctx.refs.load(digest) for _, digest in sorted(config.shards.items())], weights
