"""A model by any of its names, ready for the evaluation engine: what commands that use a model share."""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plinth.errors import MissingError

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.evaluation.engine.client import ModelEngine
    from plinth.records import Manifest

LATEST = "latest"
EXPECTED = (
    "`latest`, a run or RUN:STEP, a checkpoint's digest, a version NAME/VERSION or NAME@ALIAS, or a folder with "
    "weights, config.json and tokenizer.json"
)


def engine(ctx: Context, target: str, **options: Any) -> ModelEngine:
    """The engine of the model that `target` names.

    A version, and a folder that is signed, is proved first: what does not verify is not loaded. `latest` is the
    newest run: its published checkpoint, or its newest one.

    Raises:
        MissingError: nothing has that name.
        TrustError: a version or a signed folder does not verify.
    """
    from plinth.evaluation.engine.client import ModelEngine
    from plinth_registry.history import names_place

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
    """The published checkpoint, unless a newer run exists; a workspace without runs may have one, too."""
    from plinth_jobs.runs import configurations, find_run

    found = ctx.refs.published("checkpoint")
    newest = find_run(ctx, LATEST).run_id if found and configurations(ctx) else None
    return found if found and newest in (None, found.stats.get("run_id")) else None


def _signed(ctx: Context, folder: Path) -> dict[str, str] | None:
    """SHA-256 of the files of a signed folder, which are verified; None of one that nobody signed."""
    from plinth.trust.root import ROOT_FILE
    from plinth_registry.exports import released, sealed

    if sealed.is_export(folder):
        root = ctx.workspace.trust_folder / ROOT_FILE
        proved = sealed.verify(folder, root, unreleased=True)
        released.require_standing(ctx, proved)
        return dict(proved["digests"])
    from plinth.trust.authority import TRAINER
    from plinth.trust.root import Trust
    from plinth_registry import signing

    if not signing.is_signed(folder):
        return None
    provenance = signing.verify(folder, Trust.of(ctx.workspace).authority(TRAINER))
    return {name: file["sha256"] for name, file in provenance["files"].items()}


def _checkpoint(ctx: Context, target: str) -> Manifest | None:
    """The checkpoint's manifest, where a digest begins so."""
    from plinth.storage.state import resolve

    if set(target) - set(string.hexdigits):
        return None
    try:
        found = resolve(ctx.refs, target)
    except MissingError:
        return None
    return found if found.asset == "checkpoint" else None


def _of_run(ctx: Context, target: str, options: dict[str, Any]) -> ModelEngine:
    """A committed checkpoint of a run, verified."""
    from plinth.evaluation.engine.client import ModelEngine
    from plinth.model.hugging_face import TOKENIZER
    from plinth.training.checkpoint import checkpoint
    from plinth_jobs.runs import find_run

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
            remedy="`plinth run checkpoint list RUN` shows them",
        )
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    folder = checkpoint.verify(config.directory, step) / "model"
    name = f"checkpoint {step} of run {config.run_id}"
    digests = checkpoint.digests(config.directory, step, "model") | {TOKENIZER: part.blob.sha256}
    return ModelEngine(ctx, name, folder, tokenizer=ctx.store.open_path(part.blob), digests=digests, **options)
