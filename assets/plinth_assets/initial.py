"""The assets `initial` and `teacher`: initial weights and distillation teacher, verified and hashed before training.
The assets `{bucket}/teacher` and `{bucket}/sampled`: a model, and the text sampled from it for a bucket.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.llm import answers, rewriting
from plinth.corpus.llm.parameters import RewriteParams, endpoint_of
from plinth.corpus.sources import files
from plinth.corpus.sources.files import STAGE, SampledText
from plinth.corpus.sources.parameters import Bucket
from plinth.errors import GateError, MissingError
from plinth.evaluation.comparison.models import open_file
from plinth.model.hugging_face import CONFIG
from plinth.provenance.statements import chain
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.off_limits import place
from plinth.storage.state import resolve
from plinth.training import config, hooks, initial, manifests, sampled_text
from plinth.training.checkpoint import checkpoint, mean_record
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.initial import TEACHER
from plinth.training.parameters.initial import InitialWeights
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_registry import releases, taint
from plinth_registry.verified import verify_release


def model_stages(recipe: Recipe) -> list[Stage]:
    """Return a stage for the recipe's initial weights, and a stage for each model that a training hook reads."""
    named = {**initial_weights(recipe), **hooks.models(recipe.training)}
    return [model_stage(asset, params, shared_owner(recipe)) for asset, params in named.items()]


def initial_weights(recipe: Recipe) -> dict[str, InitialWeights]:
    """Return the recipe's initial weights, by asset key."""
    return {} if recipe.training.initial is None else {initial.ASSET: recipe.training.initial}


def model_stage(asset: str, params: InitialWeights, owner: str) -> Stage:
    """Return the stage that verifies an existing model and builds its manifest."""
    use = "Initial weights" if asset == initial.ASSET else "Weights of the teacher"
    return Stage(
        asset=asset,
        deps=(),
        make=partial(_make_initial, asset, params),
        outside=partial(_outside, params),
        version=initial.VERSION,
        params={"licence": params.licence},
        group="training",
        description=f"{use}, identified by their digest. Their lineage includes the model that they were taken from.",
        owner=owner,
        kinds=("huggingface",) if params.folder and not params.dcp else ("pytorch",),
        present=_present_initial,
        pool="training",
    )


def _make_initial(asset: str, params: InitialWeights, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Verify the source of the weights and build its manifest.

    Raises:
        GateError: the weights are tainted, or the named version was never released.
        SignatureError, LineageError, CheckpointError: the weights do not verify.
    """
    if params.dcp:
        made = initial.of_dcp(ctx, _folder(ctx, params.dcp), _description(ctx, params), params.licence, asset)
    elif params.folder:
        made = initial.of_folder(ctx, _folder(ctx, params.folder), params.licence, asset)
    else:
        parent = _release(ctx, params.release) if params.release else _checkpoint(ctx, params.checkpoint or "")
        ctx.refs.save(parent)
        made = initial.of_checkpoint(ctx, parent, asset)
    if marks := taint.marks_on(ctx, chain(ctx.refs, made)):
        raise GateError(
            f"the weights of the asset {asset} are tainted",
            found="; ".join(marks),
            remedy="choose other weights; tainted ones cannot be used",
        )
    say(f"{asset} uses the weights of {', '.join(f'{kind} {digest[:12]}' for kind, digest in made.inputs.items())}")
    return made


def _release(ctx: Context, target: str) -> Manifest:
    """Return the checkpoint of a released version. It is verified with the signed history, without MLflow."""
    name, version = _version(ctx, target)
    return ctx.refs.load(verify_release(ctx, name, version)[0].checkpoint)


def vocabulary(ctx: Context, params: InitialWeights) -> int:
    """Return the number of embedding rows of the recipe's weights, for training plans. The weights are not verified.

    Raises:
        MissingError: the named release does not exist.
    """
    if params.folder or params.dcp:
        with open_file(_description(ctx, params), CONFIG) as stream:
            return int(json.load(stream)["vocab_size"])
    mean = _mean(ctx, params.checkpoint or "")
    if params.checkpoint and mean is None:
        return _run(ctx, params.checkpoint)[0].vocab_size
    made = mean or ctx.refs.load(_meant(params, ctx))
    (described_by,) = made.named(CONFIG)
    return int(json.loads(ctx.store.read_bytes(described_by.blob))["vocab_size"])


def _version(ctx: Context, target: str) -> tuple[str, str]:
    """Return the model name and the version number that `NAME@PLACE` or `NAME/VERSION` refers to."""
    name, at, which = target.rpartition("@") if "@" in target else target.rpartition("/")
    version = releases.history(ctx, name).standing.aliases.get(which) if at == "@" else which
    if not name or not version:
        raise MissingError(
            f"no release {target!r}",
            expected="NAME@champion, NAME@canary or NAME/VERSION, as in the signed release history",
            remedy="list releases with `plinth status`; use `checkpoint` for unreleased models",
        )
    return name, version


def require_checkpoint(ctx: Context, target: str) -> None:
    """Check that a target names a stored checkpoint before training starts from it.

    Raises:
        MissingError: the target names no run and no kept checkpoint.
    """
    if _mean(ctx, target) is None:
        manifests.committed_step(*_run(ctx, target))


def _checkpoint(ctx: Context, target: str) -> Manifest:
    if (mean := _mean(ctx, target)) is not None:
        mean_record.require(RunDirectory(ctx.workspace.runs / str(mean.stats.get("run_id"))), mean)
        return mean
    run, step = _run(ctx, target)
    return manifests.committed_manifest(ctx, run, step)


def _mean(ctx: Context, target: str) -> Manifest | None:
    """Return the averaged checkpoint with this digest or a prefix of it, or None if the target names something else."""
    try:
        found = resolve(ctx.refs, target)
    except MissingError:
        return None
    return found if mean_record.is_mean(found) else None


def _run(ctx: Context, target: str) -> tuple[RunConfig, int | None]:
    """Return the run and the step that `RUN` or `RUN:STEP` refers to. `RUN` is a run ID or a unique prefix."""
    name, colon, step = target.partition(":")
    found = sorted(path.parent.name for path in ctx.workspace.runs.glob("*/config.json"))
    chosen = [one for one in found if one == name] or [one for one in found if one.startswith(name)]
    if len(chosen) != 1 or (colon and not step.isdecimal()):
        raise MissingError(
            f"no run or step {target!r}",
            found=", ".join(chosen) or "no run ID with this prefix",
            expected="RUN or RUN:STEP of this workspace, or the digest of an averaged checkpoint",
            remedy="run IDs are the folder names in `runs/`; list checkpoints with `plinth run checkpoint list RUN`",
        )
    return config.load(ctx.workspace.runs / chosen[0] / "config.json"), int(step) if step else None


def _description(ctx: Context, params: InitialWeights) -> Path:
    """Return the folder with the configuration and the tokenizer of weights from elsewhere."""
    return _folder(ctx, params.folder or params.dcp or "")


def _folder(ctx: Context, given: str) -> Path:
    base = ctx.workspace.input
    folder = Path(base, given) if isinstance(base, Path) else Path(given)
    if not folder.is_dir():
        raise MissingError(f"no folder {folder}", remedy="create it, or give an absolute path")
    return Path(place(str(folder.absolute()), base).path)


def _outside(params: InitialWeights, ctx: Context) -> str:
    """Return a value that changes if the name refers to other weights, or if the taints change. The stage's `make`
    verifies the weights."""
    return fingerprint.digest([_meant(params, ctx), [mark.target for mark in taint.records(ctx)]])


def _meant(params: InitialWeights, ctx: Context) -> str:
    if folders := [_folder(ctx, one) for one in (params.folder, params.dcp) if one]:
        files = sorted(path for folder in folders for path in folder.iterdir() if path.is_file())
        return fingerprint.digest([[one.name, one.stat().st_size, one.stat().st_mtime_ns] for one in files])
    if params.release:
        name, version = _version(ctx, params.release)
        return releases.history(ctx, name).releasing(name, version).candidate["checkpoint"]
    if (mean := _mean(ctx, params.checkpoint or "")) is not None:
        return mean.digest
    run, step = _run(ctx, params.checkpoint or "")
    number = step if step is not None else max(checkpoint.committed(run.directory), default=0)
    record = checkpoint.record_path(run.directory, number)
    return fingerprint.digest(record.read_text() if record.exists() else "")


def _present_initial(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[kind, digest] for kind, digest in made.inputs.items()]
    rows += [[name, str(made.stats[name])] for name in ("run_id", "step", "vocab_size") if name in made.stats]
    rows += [["licence", made.params["licence"]]] if "licence" in made.params else []
    rows += [[part.name, f"{part.blob.bytes:,} bytes"] for part in made.parts]
    return {"source": markdown(table(["what", "value"], rows)), "model": made.stats["model"]}


def sampled_stages(recipe: Recipe) -> list[Stage]:
    """Return the teacher stage and the sampling stage of every bucket whose source is a model, and the stage of every
    bucket that is derived from another bucket."""
    found = list[Stage]()
    for name, bucket in recipe.corpus.buckets.items():
        if bucket.rewrites:
            found.append(_rewritten(name, bucket, recipe))
        elif written(name, bucket):
            found += _sampled(name, bucket)
    return found


def written(name: str, bucket: Bucket) -> tuple[str, ...]:
    """Return the key of the asset with the text that a model wrote for a bucket. The result is empty if the bucket's
    sources have files."""
    return (f"{name}/{STAGE}",) if bucket.sources[0].kind in files.WRITTEN_KINDS else ()


def _rewritten(name: str, bucket: Bucket, recipe: Recipe) -> Stage:
    params = RewriteParams.model_validate(bucket.sources[0].options)
    origin, prompt = bucket.rewrites, f"lists/{params.prompt}"
    endpoint = recipe.corpus.endpoints.get(params.endpoint)

    def make(ctx: Context, inputs: Inputs, say: Say) -> Manifest:
        given = (inputs[f"{origin}/documents"], inputs[f"{origin}/policy"], inputs[prompt])
        return rewriting.run(ctx, name, origin, params, endpoint_of(recipe.corpus.endpoints, params.endpoint), *given)

    return Stage(
        asset=f"{name}/{STAGE}",
        deps=(f"{origin}/documents", f"{origin}/policy", prompt),
        make=make,
        version=f"{rewriting.VERSION}-{answers.VERSION}",
        params=params.model_dump(mode="json", exclude={"endpoint"}) | {"origin": origin},
        libraries=fingerprint.UNICODE,
        group="sources",
        description=f"Texts of the bucket {name}, which {params.model} derives from the documents of {origin}.",
        owner=bucket.owner,
        kinds=("json",),
        suite=lambda made, _: Suite(f"rewritten-{name}", [{"documents": made.stats["documents"]}],
                                    [between("documents", 1, None)]),
        present=_present_rewritten,
        max_price=endpoint.max_money if endpoint else None,
    )  # fmt: skip


def _present_rewritten(ctx: Context, made: Manifest) -> dict[str, Any]:
    rejects = sorted(made.stats["rejects"].items(), key=lambda one: (-one[1], one[0]))
    counts = {name: value for name, value in made.stats.items() if isinstance(value, int)}
    return counts | {"rejects": markdown(table(["reason", "documents"], rejects))}


def _sampled(name: str, bucket: Bucket) -> list[Stage]:
    source = bucket.sources[0]
    params, teacher = SampledText.model_validate(source.options), f"{name}/{TEACHER}"
    return [
        model_stage(teacher, InitialWeights.named(source.path), bucket.owner),
        Stage(
            asset=f"{name}/{STAGE}",
            deps=(teacher,),
            make=lambda ctx, inputs, _: sampled_text.run(ctx, name, params, inputs[teacher]),
            version=sampled_text.VERSION,
            params=params.model_dump(mode="json"),
            group="sources",
            description=f"Text of the bucket {name}, sampled from the model {source.path}.",
            owner=bucket.owner,
            kinds=("pytorch",),
            present=lambda _, made: dict(made.stats),
            pool="training",
        ),
    ]
