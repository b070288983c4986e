"""`plinth export model`: a release, signed and with its papers, in Hugging Face's layout."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.model.export import Exported
    from registry.exports.sealed import ExportClaim

#: Writes weights, configuration and tokenizer into a folder.
Writer = Callable[[Path], "Exported"]


@click.command(
    epilog=examples(
        "plinth export model release llama",
        "plinth export model demo/2 llama --dtype bfloat16 --file-gb 2",
        "plinth export model latest llama --unreleased --checkpoint 5000",
    )
)
@click.argument("target")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--unreleased", is_flag=True, help="Export a checkpoint that nobody released; the export says so.")
@click.option("--checkpoint", type=click.IntRange(min=1), help="With --unreleased: step of a committed checkpoint.")
@click.option(
    "--dtype",
    type=click.Choice(["saved", "float32", "bfloat16", "float16"]),
    default="saved",
    show_default=True,
    help="Precision of the weights; `saved` keeps that of the checkpoint.",
)
@click.option(
    "--file-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Largest size of a file of weights, in gigabytes.",
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
    dtype: str,
    file_gb: float,
    as_json: bool,
) -> None:
    """Write a release to FOLDER: weights, configuration, tokenizer, papers, and a signature over all of it.

    TARGET is `release`, `canary`, NAME/VERSION or NAME@ALIAS. With --unreleased it is a run (`latest`, its id or a
    prefix of it), and the export is marked. What is tainted is not exported either way.

    `AutoModelForCausalLM` and `AutoTokenizer` load it as the architecture of the run's model: Llama, Qwen3 or OLMo 2;
    muP's multipliers are folded into the weights. `plinth verify FOLDER --root root.json` proves it anywhere. FOLDER
    appears complete or not at all, and each export is noted in the workspace's `exports/`.
    """
    from jobs.cli import output
    from plinth.errors import GateError, WorkspaceError
    from registry.audit_log import AuditedAction, audited

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(
            f"{folder} is not empty", expected="a new or empty folder", remedy="name another, or delete it first"
        )
    ctx = settings.context()
    action = "export unreleased" if unreleased else "export"
    with audited(ctx, AuditedAction(action, target, getpass.getuser(), f"to {folder.absolute()}")) as asked:
        if unreleased:
            made, claim = _run(ctx, target, checkpoint, folder, dtype, int(file_gb * 1e9))
        else:
            named = _release_name(settings, target)
            if named is None:
                raise GateError(
                    f"{target} is no release",
                    expected="`release`, `canary`, NAME/VERSION or NAME@ALIAS",
                    remedy="promote it first; or --unreleased, which marks the export",
                )
            made, claim = _release(ctx, named, folder, dtype, int(file_gb * 1e9))
        asked.subject = f"{claim.name} checkpoint {claim.checkpoint[:12]}"
    if as_json:
        output.emit_json({"folder": str(folder), **claim.model_dump(mode="json"), **made._asdict()})
        return
    output.say(
        f"{folder}: {claim.name} ({claim.status}), {made.parameters:,} parameters, {made.dtype}, "
        f"{output.size(made.bytes)}, in {len(made.files)} file{'' if len(made.files) == 1 else 's'}; signed"
    )


def _release_name(settings: Settings, target: str) -> str | None:
    """`NAME/VERSION` or `NAME@ALIAS` of what may be a release."""
    aliases = {"release": "champion", "champion": "champion", "canary": "canary"}
    if target in aliases:
        return f"{settings.load_recipe().required_release().name}@{aliases[target]}"
    return target if "/" in target or "@" in target else None


def _release(ctx: Context, target: str, folder: Path, dtype: str, file_bytes: int) -> tuple[Exported, ExportClaim]:
    from plinth.model.export import export_model
    from plinth.model.hugging_face import TOKENIZER
    from registry.exports import released

    found = released.find(ctx, target)
    source = found.candidate.directory

    def write(staged: Path) -> Any:
        return export_model(source, source / TOKENIZER, staged, dtype, file_bytes)

    return _sealed(ctx, folder, write, lambda staged: released.add_papers(ctx, found, staged))


def _run(
    ctx: Context, run: str, checkpoint: int | None, folder: Path, dtype: str, file_bytes: int
) -> tuple[Exported, ExportClaim]:
    from jobs.cli.training.batch import find_run
    from plinth.errors import MissingError
    from plinth.model.export import export_model
    from plinth.training.checkpoint import checkpoint as files
    from registry.exports import unreleased
    from registry.exports.sealed import ExportClaim

    config = find_run(ctx, run)
    steps = files.committed(config.directory)
    step = checkpoint or (steps[-1] if steps else 0)
    if step not in steps:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {step or ''}".rstrip(),
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="`plinth checkpoint list RUN` shows them",
        )
    unreleased.require_untainted(ctx, config.run_id, (config.tokenizer, config.mixture, *config.shards.values()))
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    weights, name = files.verify(config.directory, step) / "model", f"{config.run_id}:{step}"
    committed = hashlib.sha256(files.record_path(config.directory, step).read_bytes()).hexdigest()

    def mark(staged: Path) -> ExportClaim:
        unreleased.add_card(staged, name)
        return ExportClaim(name=name, status="UNRELEASED", checkpoint=committed)

    return _sealed(
        ctx, folder, lambda to: export_model(weights, ctx.store.open_path(part.blob), to, dtype, file_bytes), mark
    )


def _sealed(
    ctx: Context, folder: Path, write: Writer, add: Callable[[Path], ExportClaim]
) -> tuple[Exported, ExportClaim]:
    """The folder, which appears when it is whole and signed."""
    import tempfile

    from plinth.storage.atomic import named_failures, sync_directory
    from plinth.trust.standalone_verify import EXPORT
    from registry.exports import sealed

    with named_failures(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as staging:
            staged = Path(staging) / "model"
            made = write(staged)
            claim = add(staged)
            sealed.seal(ctx, staged, claim)
            digest = hashlib.sha256((staged / EXPORT).read_bytes()).hexdigest()
            about = {"name": claim.name, "status": claim.status, "subject": claim.checkpoint}
            sealed.record(ctx, **about, to=str(folder.absolute()), sealed=digest)
            staged.replace(folder)
        sync_directory(folder.parent)
    return made, claim
