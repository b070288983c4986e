"""`plinth model generate`: sample text from a model, which any of its names identifies."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.evaluation.engine.client import ModelEngine
    from plinth.records import Manifest

LATEST = "latest"

EXPECTED = (
    "`latest`, a run or RUN:STEP, a checkpoint's digest, a version NAME/VERSION or NAME@ALIAS, or a folder with "
    "weights, config.json and tokenizer.json"
)


@click.command(
    epilog=examples(
        'plinth model generate latest "The capital of France is"',
        'plinth model generate demo/1 "Once upon a time" --temperature 0.8 --seed 3 --stop END',
        "plinth model generate latest --file prompts.jsonl --max-tokens 64 --json | jq -r '.[].text'",
    )
)
@click.argument("model")
@click.argument("prompts", type=Utf8Text(), nargs=-1)
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Prompts as JSON lines: {"prompt": "…"}.',
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Maximum number of output tokens."
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 is greedy decoding.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Nucleus sampling: keep the smallest set of tokens with this total probability.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for sampling.")
@click.option("--stop", type=Utf8Text(), multiple=True, help="Stop sequence, removed from the output; repeatable.")
@shared
@json_option
def generate(
    settings: Settings,
    model: str,
    prompts: tuple[str, ...],
    file: Path | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    stop: tuple[str, ...],
    as_json: bool,
) -> None:
    """Sample text from MODEL, which continues each of PROMPTS.

    MODEL is `latest`, a run or RUN:STEP, a checkpoint's digest, a version NAME/VERSION or NAME@ALIAS, or a folder of
    weights in Hugging Face's layout. Prompt and output together are limited to the training sequence length; longer
    prompts are truncated at the start.
    """
    from plinth.evaluation.engine.records import Sampling

    lines, rejects = _read(file) if file else ([], 0)
    asked = [*prompts, *lines]
    if not asked:
        raise click.UsageError("no prompt: give a prompt after the model, or a file with --file")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop)
    with engine(settings.context(), model, label="generate") as loaded:
        found = loaded.generate(asked, sampling, spread=True)
    if rejects:
        output.line(
            f"{file}: skipped {rejects} line{'s' * (rejects > 1)} without a JSON object with a prompt", err=True
        )
    if as_json:
        rows: list[dict[str, Any]] = [
            {"prompt": prompt, "text": one.text, "tokens": len(one.tokens), "ended": one.ended, "cut": one.cut}
            for prompt, one in zip(asked, found, strict=True)
        ]
        output.emit_json(rows)
        return
    for prompt, one in zip(asked, found, strict=True):
        if len(asked) > 1:
            output.heading(prompt)
        output.say(output.plain_markup(one.text))


def _read(file: Path) -> tuple[list[str], int]:
    """Return the prompts in a file and the number of lines that are not prompts."""
    prompts, rejects = [], 0
    for line in file.read_bytes().splitlines():
        try:
            prompt = json.loads(line)["prompt"]
            prompt.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            prompt = None
        if isinstance(prompt, str):
            prompts.append(prompt)
        elif line.strip():
            rejects += 1
    return prompts, rejects


def engine(ctx: Context, target: str, **options: Any) -> ModelEngine:
    """Load the model that `target` names into the evaluation engine.

    A version or signed folder is verified first, and is not loaded if verification fails. `latest` is the published
    checkpoint of the newest run. If no checkpoint is published, `latest` is the newest committed checkpoint of that
    run.

    Raises:
        MissingError: no model has that name.
        TrustError: a version or a signed folder does not verify.
    """
    from plinth.evaluation.engine.client import ModelEngine
    from plinth_registry.releases import names_place

    folder = Path(target)
    if folder.is_dir() and not names_place(target):
        return ModelEngine.of_folder(ctx, folder, digests=_signed(ctx, folder), **options)
    if "/" in target or "@" in target:
        from plinth_registry.verified import verify_model

        proved = verify_model(ctx, target)
        digests = {part.name: part.blob.sha256 for part in ctx.refs.load(proved.checkpoint).parts}
        return ModelEngine(ctx, target, proved.directory, digests=digests, **options)
    published = _published(ctx) if target == LATEST else None
    if published is not None:
        return ModelEngine.of(ctx, published, **options)
    manifest = _checkpoint(ctx, target)
    return _of_run(ctx, target, options) if manifest is None else ModelEngine.of(ctx, manifest, **options)


def _published(ctx: Context) -> Manifest | None:
    """Return the published checkpoint, unless a newer run exists. A workspace without runs can also have a published
    checkpoint."""
    from plinth_jobs.targets import configurations, find_run

    found = ctx.refs.published("checkpoint")
    newest = find_run(ctx, LATEST).run_id if found and configurations(ctx) else None
    return found if found and newest in (None, found.stats.get("run_id")) else None


def _signed(ctx: Context, folder: Path) -> dict[str, str] | None:
    """Verify a signed folder and return the SHA-256 of its files. If the folder is unsigned, return None."""
    from plinth.trust.root import ROOT_FILE
    from plinth_registry import exports
    from plinth_registry.exports import models

    if exports.is_export(folder):
        root = ctx.workspace.trust_folder / ROOT_FILE
        proved = exports.verify(folder, root, unreleased=True)
        models.require_standing(ctx, proved)
        return dict(proved["digests"])
    from plinth.trust.dsse import TRAINER
    from plinth.trust.root import Trust
    from plinth_registry import signing

    if not signing.is_signed(folder):
        return None
    provenance = signing.verify(folder, Trust.of(ctx.workspace).authority(TRAINER))
    return {name: file["sha256"] for name, file in provenance["files"].items()}


def _checkpoint(ctx: Context, target: str) -> Manifest | None:
    """Return the manifest of the checkpoint with a digest that starts with `target`, or None."""
    from plinth.storage.state import resolve

    if set(target) - set(string.hexdigits):
        return None
    try:
        found = resolve(ctx.refs, target)
    except MissingError:
        return None
    return found if found.asset == "checkpoint" else None


def _of_run(ctx: Context, target: str, options: dict[str, Any]) -> ModelEngine:
    """Verify and load a committed checkpoint of a run."""
    from plinth.evaluation.engine.client import ModelEngine
    from plinth.model.hugging_face import TOKENIZER
    from plinth.training.checkpoint import checkpoint
    from plinth.training.checkpoint.shares import fetch_whole
    from plinth_jobs.targets import find_run

    run, _, asked = target.partition(":")
    try:
        config = find_run(ctx, run)
    except MissingError as error:
        raise MissingError(f"no model {target!r}", found=error.found, expected=EXPECTED, remedy=error.remedy) from error
    steps = checkpoint.committed(config.directory)
    step = int(asked) if asked.isdigit() else (steps[-1] if steps and not asked else 0)
    if step not in steps:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {asked}".rstrip(),
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="list checkpoints with `plinth run checkpoint list RUN`",
        )
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    fetch_whole(config, step)
    folder = checkpoint.verify(config.directory, step) / "model"
    name = f"checkpoint {step} of run {config.run_id}"
    digests = checkpoint.digests(config.directory, step, "model") | {TOKENIZER: part.blob.sha256}
    return ModelEngine(ctx, name, folder, tokenizer=ctx.store.open_path(part.blob), digests=digests, **options)
