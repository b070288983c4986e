"""`plinth export model`: a release, signed and with its papers, in Hugging Face's layout."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from plinth.model.export_forms import FORMS
from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.model.export import Exported
    from plinth_registry.exports.sealed import ExportClaim

#: Gigabytes of a file of weights, unless said otherwise.
DEFAULT_FILE_GB = 5.0

#: Writes weights, configuration and tokenizer into a folder.
Writer = Callable[[Path], "Exported"]


class ExportLayout(NamedTuple):
    """How the weights are written."""

    form: str  # `hf`, or one of `plinth.model.export_forms`
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
@click.option("--unreleased", is_flag=True, help="Export a checkpoint that nobody released; the export says so.")
@click.option("--checkpoint", type=click.IntRange(min=1), help="With --unreleased: step of a committed checkpoint.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["hf", *FORMS]),
    default="hf",
    show_default=True,
    help="`hf`: the weights as they are; another form is measured against them, and leaves when it loses little.",
)
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
    default=DEFAULT_FILE_GB,
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
    form: str,
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

    --format gives llama.cpp's GGUF, torchao's integers or a pruned model. Its loss of bits per byte on held-out text,
    slice by slice, must pass the gate `compressed` and stands signed in the export; of an unreleased checkpoint nothing
    is measured.
    """
    from plinth.errors import GateError, WorkspaceError
    from plinth_jobs.cli import output
    from plinth_registry.audit_log import AuditedAction, audited

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(
            f"{folder} is not empty", expected="a new or empty folder", remedy="name another, or delete it first"
        )
    if form != "hf" and (dtype != "saved" or file_gb != DEFAULT_FILE_GB):
        raise click.UsageError(f"--dtype and --file-gb are of the format hf; {form} decides both itself")
    ctx = settings.context()
    action = "export unreleased" if unreleased else "export"
    with audited(ctx, AuditedAction(action, target, getpass.getuser(), f"to {folder.absolute()}")) as asked:
        if unreleased:
            made, claim = _run(ctx, target, checkpoint, folder, ExportLayout(form, dtype, int(file_gb * 1e9)))
        else:
            named = _release_name(settings, target)
            if named is None:
                raise GateError(
                    f"{target} is no release",
                    expected="`release`, `canary`, NAME/VERSION or NAME@ALIAS",
                    remedy="promote it first; or --unreleased, which marks the export",
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
    """`NAME/VERSION` or `NAME@ALIAS` of what may be a release."""
    aliases = {"release": "champion", "champion": "champion", "canary": "canary"}
    if target in aliases:
        return f"{settings.load_recipe().required_release().name}@{aliases[target]}"
    return target if "/" in target or "@" in target else None


def _release(
    settings: Settings, ctx: Context, target: str, folder: Path, layout: ExportLayout
) -> tuple[Exported, ExportClaim]:
    from plinth.model.hugging_face import TOKENIZER
    from plinth_registry.exports import forms, released

    found = released.find(ctx, target)
    source = found.candidate.directory
    if layout.form == "hf":
        form = f"hf-{layout.dtype}"

        def state(staged: Path) -> ExportClaim:
            forms.state_plain(ctx, forms.source_of(ctx, source), form, staged)
            return released.add_papers(ctx, found, form, staged)

        return _sealed(ctx, folder, _as_it_is(source, source / TOKENIZER, layout), state)
    with FORMS.find(layout.form).export(ctx, layout.form, source, source / TOKENIZER) as made:

        def judge(staged: Path) -> ExportClaim:
            judged = made.judged(settings, ctx, found.record.model, staged)
            return released.add_papers(ctx, found, layout.form, staged).model_copy(update={"form": judged})

        return _sealed(ctx, folder, made.write, judge)


def _as_it_is(source: Path, tokenizer: Path, layout: ExportLayout) -> Writer:
    """Writes the weights in Hugging Face's layout."""
    from plinth.model.export import export_model

    return lambda staged: export_model(source, tokenizer, staged, layout.dtype, layout.file_bytes)


def _run(
    ctx: Context, run: str, checkpoint: int | None, folder: Path, layout: ExportLayout
) -> tuple[Exported, ExportClaim]:
    from plinth.errors import MissingError
    from plinth.training.checkpoint import checkpoint as files
    from plinth_jobs.runs import find_run
    from plinth_registry.exports import unreleased
    from plinth_registry.exports.sealed import ExportClaim

    config = find_run(ctx, run)
    steps = files.committed(config.directory)
    step = checkpoint or (steps[-1] if steps else 0)
    if step not in steps:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {step or ''}".rstrip(),
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="`plinth run checkpoint list RUN` shows them",
        )
    unreleased.require_untainted(ctx, config.run_id, (config.tokenizer, config.mixture, *config.shards.values()))
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    weights, name = files.verify(config.directory, step) / "model", f"{config.run_id}:{step}"
    committed = hashlib.sha256(files.record_path(config.directory, step).read_bytes()).hexdigest()

    def mark(staged: Path) -> ExportClaim:
        unreleased.add_card(staged, name)
        return ExportClaim(name=name, status="UNRELEASED", checkpoint=committed)

    tokenizer = ctx.store.open_path(part.blob)
    if layout.form == "hf":
        return _sealed(ctx, folder, _as_it_is(weights, tokenizer, layout), mark)
    with FORMS.find(layout.form).export(ctx, layout.form, weights, tokenizer) as form:
        return _sealed(ctx, folder, form.write, mark)


def _sealed(
    ctx: Context, folder: Path, write: Writer, add: Callable[[Path], ExportClaim]
) -> tuple[Exported, ExportClaim]:
    """The folder, which appears when it is whole and signed."""
    import tempfile

    from plinth.storage.atomic import named_failures, sync_directory
    from plinth.trust.root import ROOT_FILE
    from plinth.trust.standalone_verify import EXPORT
    from plinth_registry.exports import sealed
    from plinth_registry.exports.unreleased import UNRELEASED

    with named_failures(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as staging:
            staged = Path(staging) / "model"
            made = write(staged)
            claim = add(staged)
            sealed.seal(ctx, staged, claim)
            root = ctx.workspace.trust_folder / ROOT_FILE
            sealed.verify(staged, root, unreleased=claim.status == UNRELEASED)  # as whoever gets it will
            digest = hashlib.sha256((staged / EXPORT).read_bytes()).hexdigest()
            about = {"name": claim.name, "status": claim.status, "subject": claim.checkpoint}
            sealed.record(ctx, **about, to=str(folder.absolute()), sealed=digest)
            staged.replace(folder)
        sync_directory(folder.parent)
    return made, claim
