"""`plinth export pointers | restore | tokens | model`: export assets and releases for other programs."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from plinth.errors import GateError, MissingError, WorkspaceError
from plinth.model.hugging_face import FORMS
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Commands, Settings, examples, json_option, recipe_option, shared, unsigned_option

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.model.export import Exported
    from plinth.records import Manifest
    from plinth_registry.exports import ExportClaim

#: Default size of a weight file in gigabytes.
DEFAULT_FILE_GB = 5.0

#: Function that writes weights, configuration and tokenizer to a folder.
Writer = Callable[[Path], "Exported"]


@click.command(
    epilog=examples("plinth status --json | jq -r '.[].digest'", "plinth export restore 3fa9c1d2 /tmp/shards")
)
@click.argument("digest")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--unreleased", is_flag=True, help="Allow a checkpoint that was not released to be exported.")
@shared
@json_option
def restore(settings: Settings, digest: str, directory: Path, unreleased: bool, as_json: bool) -> None:
    """Write all parts of the manifest DIGEST to DIRECTORY and verify them.

    DIGEST may be a unique prefix; `plinth status` lists published digests. Tainted artifacts are never restored.
    """
    from plinth.storage import dvc
    from plinth.storage.state import resolve
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
    """Command group that writes DVC pointers if its first argument is a directory, as in `export DIRECTORY …`."""

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

    `plinth export DIRECTORY [ASSETS]` writes DVC pointers. `plinth export text [BUCKETS]` writes curated text with its
    ledger columns and a data card; check it with `plinth export verify PLACE`. `plinth export tokens NAME` writes token
    files for other trainers. `plinth export model RELEASE FOLDER` writes a signed release in Hugging Face's layout with
    its documents. If the folder has the name of a command, prefix it with `./`, as in `./tokens`.
    """


@click.command("export", epilog=examples("plinth export data 'web/shards' mixture", "(cd data && dvc pull)"))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("assets", nargs=-1)
@click.option("--unreleased", is_flag=True, help="Also export a checkpoint that was not released.")
@shared
@json_option
def pointers(settings: Settings, directory: Path, assets: tuple[str, ...], unreleased: bool, as_json: bool) -> None:
    """Make DIRECTORY a DVC project with pointers to ASSETS (default: all), to be read by plain `dvc pull` (extra
    `dvc`).

    The checkpoint is included only with --unreleased. Tainted artifacts are never included.
    """
    from plinth.storage import dvc
    from plinth_registry.exports import data

    ctx = settings.context()
    names = assets or tuple(ref.asset for ref in ctx.refs.all() if ref.asset != "checkpoint" or unreleased)
    going = [ctx.refs.current(name) for name in names]
    data.leave(ctx, going, str(directory.absolute()), unreleased=unreleased)
    written = dvc.export(ctx, going, directory)
    if as_json:
        output.emit_json([str(pointer) for pointer in written])
    else:
        output.say(
            f"Wrote {len(written)} DVC pointers to {directory}. Fetch the files with (cd {directory} && dvc pull)"
        )


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
    type=click.Choice(["megatron", "olmo", "mds", "bin", "shards"]),
    required=True,
    help="megatron: .bin and .idx; olmo: .npy and .csv.gz; mds: MosaicML Streaming; bin: raw tokens with document "
    "offsets (.npy); shards: the shard files.",
)
@click.option("--to", required=True, help="Target folder or s3:// prefix.")
@unsigned_option
@shared
@json_option
def tokens(settings: Settings, name: str, kind: Any, to: str, unsigned: bool, as_json: bool) -> None:
    """Write the tokens of NAME (a bucket, or a run: `latest`, a run ID or a prefix of it) for another trainer.

    Each stream is a separate data set. For a run, the output also lists each stream's fraction of the sequences, for
    use as blend weights. The compliance key signs the files (`EXPORT.json`); check them with `plinth export verify
    PLACE`.
    """
    from plinth.tokens.shards.exports import export
    from plinth_registry.exports import data

    ctx = settings.context()
    shards, weights = _chosen(ctx, name)
    with data.leaving(ctx, shards, to, f"tokens of {name}", unsigned=unsigned) as seal:
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
    output.say(f"signed: EXPORT.json has SHA-256 {signed}" if signed else "not signed: other machines cannot verify it")


def _chosen(ctx: Context, name: str) -> tuple[list[Manifest], dict[str, float]]:
    """Return the shard sets of a bucket or run. For a run, also return the fraction of its sequences from each stream.

    Raises:
        MissingError: the bucket or run does not exist.
    """
    from plinth_jobs.targets import find_run

    if ctx.refs.ref(f"{name}/shards") is not None:
        return [ctx.refs.current(f"{name}/shards")], {}
    config = find_run(ctx, name)
    stats = ctx.refs.load(config.mixture).stats
    weights = {stream: own["needed"] / stats["sequences"] for stream, own in stats["buckets"].items()}
    return [ctx.refs.load(digest) for _, digest in sorted(config.shards.items())], weights


class ExportLayout(NamedTuple):
    """Format options for exported weights."""

    form: str  # `hf`, or one of `plinth.model.hugging_face`
    dtype: str
    file_bytes: int


@click.command(
    epilog=examples(
        "plinth export model release llama",
        "plinth export model demo/2 llama --dtype bfloat16 --file-gb 2",
        "plinth export model release llama-q8 --format gguf-q8_0",
        "plinth export model latest llama --unreleased --checkpoint 5000",
    )
)
@click.argument("target")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--unreleased", is_flag=True, help="Export a checkpoint that was not released; the export is marked as unreleased."
)
@click.option(
    "--checkpoint", type=click.IntRange(min=1), help="Step of the checkpoint to export; requires --unreleased."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["hf", *FORMS]),
    default="hf",
    show_default=True,
    help="Format of the weights. `hf` keeps the weights unchanged; compressed formats must pass the gate `compressed`.",
)
@click.option(
    "--dtype",
    type=click.Choice(["saved", "float32", "bfloat16", "float16"]),
    default="saved",
    show_default=True,
    help="Precision of the weights; `saved` keeps the checkpoint's precision.",
)
@click.option(
    "--file-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_FILE_GB,
    show_default=True,
    help="Maximum size of a weight file in gigabytes.",
)
@shared
@recipe_option
@json_option
def model(
    settings: Settings,
    target: str,
    folder: Path,
    unreleased: bool,
    checkpoint: int | None,
    form: str,
    dtype: str,
    file_gb: float,
    as_json: bool,
) -> None:
    """Write a signed release to FOLDER: weights, configuration, tokenizer and documents.

    TARGET is `release`, `canary`, NAME/VERSION or NAME@ALIAS. With --unreleased it is a run (`latest`, a run ID or a
    prefix of it), and the export is marked as unreleased. Tainted models are never exported.

    `AutoModelForCausalLM` and `AutoTokenizer` load it with the architecture of the run: Llama, Qwen3 or OLMo 2. muP
    multipliers are folded into the weights. `plinth verify FOLDER --root root.json` verifies it on any machine. FOLDER
    is written completely or not at all, and each export is recorded in the workspace's `exports/`.

    --format selects llama.cpp's GGUF, torchao integers or a pruned model. The loss of the compressed model on held-out
    text, in bits per byte by slice, must pass the gate `compressed` and is signed in the export. Unreleased checkpoints
    are not measured.
    """
    from plinth_registry.audit_log import AuditedAction, audited

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(
            f"{folder} is not empty",
            expected="a new or empty folder",
            remedy="choose another folder, or delete it first",
        )
    if form != "hf" and (dtype != "saved" or file_gb != DEFAULT_FILE_GB):
        raise click.UsageError(
            f"--dtype and --file-gb apply only to the format `hf`; the format {form} determines both values"
        )
    ctx = settings.context()
    action = "export unreleased" if unreleased else "export"
    with audited(ctx, AuditedAction(action, target, getpass.getuser(), f"to {folder.absolute()}")) as asked:
        if unreleased:
            made, claim = _run(ctx, target, checkpoint, folder, ExportLayout(form, dtype, int(file_gb * 1e9)))
        else:
            named = _release_name(settings, target)
            if named is None:
                raise GateError(
                    f"{target} is not a release",
                    expected="`release`, `canary`, NAME/VERSION or NAME@ALIAS",
                    remedy="promote it first, or use --unreleased, which marks the export",
                )
            made, claim = _release(settings, ctx, named, folder, ExportLayout(form, dtype, int(file_gb * 1e9)))
        asked.subject = f"{claim.name} checkpoint {claim.checkpoint[:12]}"
    if as_json:
        output.emit_json({"folder": str(folder), **claim.model_dump(mode="json"), **made._asdict()})
        return
    output.say(
        f"{folder}: {claim.name} ({claim.status}), {made.parameters:,} parameters, {made.dtype}, "
        f"{output.size(made.bytes)}, in {counted(len(made.files), 'file')}; signed"
    )


def _release_name(settings: Settings, target: str) -> str | None:
    """Return the target as `NAME/VERSION` or `NAME@ALIAS` if it may be a release, otherwise None."""
    aliases = {"release": "champion", "champion": "champion", "canary": "canary"}
    if target in aliases:
        return f"{settings.load_recipe().required_release().name}@{aliases[target]}"
    return target if "/" in target or "@" in target else None


def _release(
    settings: Settings, ctx: Context, target: str, folder: Path, layout: ExportLayout
) -> tuple[Exported, ExportClaim]:
    from plinth.model.hugging_face import TOKENIZER
    from plinth_registry import exports
    from plinth_registry.exports import models

    found = models.find(ctx, target)
    source = found.candidate.directory
    if layout.form == "hf":
        form = f"hf-{layout.dtype}"

        def state(staged: Path) -> ExportClaim:
            exports.state_plain(ctx, exports.form_source(ctx, source), form, staged)
            return models.add_papers(ctx, found, form, staged)

        return _sealed(ctx, folder, _as_it_is(source, source / TOKENIZER, layout), state)
    with FORMS.find(layout.form).export(ctx, layout.form, source, source / TOKENIZER) as made:

        def judge(staged: Path) -> ExportClaim:
            judged = made.judged(settings, ctx, found.record.model, staged)
            return models.add_papers(ctx, found, layout.form, staged).model_copy(update={"form": judged})

        return _sealed(ctx, folder, made.write, judge)


def _as_it_is(source: Path, tokenizer: Path, layout: ExportLayout) -> Writer:
    """Return a function that writes the weights unchanged in Hugging Face's layout."""
    from plinth.model.export import export_model

    return lambda staged: export_model(source, tokenizer, staged, layout.dtype, layout.file_bytes)


def _run(
    ctx: Context, run: str, checkpoint: int | None, folder: Path, layout: ExportLayout
) -> tuple[Exported, ExportClaim]:
    from plinth.training.checkpoint import checkpoint as files
    from plinth.training.checkpoint.shares import fetch_whole
    from plinth_jobs.targets import find_run
    from plinth_registry.exports import ExportClaim, models

    config = find_run(ctx, run)
    steps = files.committed(config.directory)
    step = checkpoint or (steps[-1] if steps else 0)
    if step not in steps:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {step or ''}".rstrip(),
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="list checkpoints with `plinth run checkpoint list RUN`",
        )
    models.require_untainted(ctx, config.run_id, (config.tokenizer, config.mixture, *config.shards.values()))
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    fetch_whole(config, step)
    weights, name = files.verify(config.directory, step) / "model", f"{config.run_id}:{step}"
    committed = hashlib.sha256(files.record_path(config.directory, step).read_bytes()).hexdigest()

    def mark(staged: Path) -> ExportClaim:
        models.add_card(staged, name)
        return ExportClaim(name=name, status="UNRELEASED", checkpoint=committed)

    tokenizer = ctx.store.open_path(part.blob)
    if layout.form == "hf":
        return _sealed(ctx, folder, _as_it_is(weights, tokenizer, layout), mark)
    with FORMS.find(layout.form).export(ctx, layout.form, weights, tokenizer) as form:
        return _sealed(ctx, folder, form.write, mark)


def _sealed(
    ctx: Context, folder: Path, write: Writer, add: Callable[[Path], ExportClaim]
) -> tuple[Exported, ExportClaim]:
    """Write an export to a temporary folder, sign and verify it, then move it to its final folder."""
    import tempfile

    from plinth.storage.atomic import named_failures, sync_directory
    from plinth.trust.root import ROOT_FILE
    from plinth.trust.standalone_verify import EXPORT
    from plinth_registry import exports
    from plinth_registry.exports.models import UNRELEASED

    with named_failures(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as staging:
            staged = Path(staging) / "model"
            made = write(staged)
            claim = add(staged)
            exports.seal(ctx, staged, claim)
            root = ctx.workspace.trust_folder / ROOT_FILE
            exports.verify(staged, root, unreleased=claim.status == UNRELEASED)  # verify it as the recipient will
            digest = hashlib.sha256((staged / EXPORT).read_bytes()).hexdigest()
            about = {"name": claim.name, "status": claim.status, "subject": claim.checkpoint}
            exports.record(ctx, **about, to=str(folder.absolute()), sealed=digest)
            staged.replace(folder)
        sync_directory(folder.parent)
    return made, claim
