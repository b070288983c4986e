"""Initial weights from a release, a checkpoint, a folder in Hugging Face's layout, or a DCP folder.

    recipe ─► asset `initial`: verified, hashed, in the store ─► comparison with the recipe ─► every rank reads its part

This module creates the asset's manifest, compares it with a recipe, and replays the parent's text. It needs no torch;
ranks read the weights through `engine.weights`.

The digest of the manifest is in the run's key and among the inputs of its `run`, so lineage, taint and takedown include
the parent. Does not belong here: the parent's optimizer state (checkpoint.resume), names and signatures of releases
(registry).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import CheckpointError, MissingError, PlinthError, RecipeError
from plinth.evaluation.comparison.models import MODEL_ASSET, open_file, weights
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER, model_of
from plinth.model.interchange.conversion import DcpWeights, hf_files
from plinth.model.interchange.dcp import DcpFolder
from plinth.model.parameters import Model
from plinth.records import Manifest, Part, Step, bucket_of
from plinth.storage import tensor_file
from plinth.storage.store import Store
from plinth.tokens.mixture.apportion import largest_remainder
from plinth.tokens.tokenizer.template import same_tokenizer
from plinth.training.parameters.initial import REPLAYED, InitialWeights

# The asset `initial`: the files of the initial weights, by content.
#
# Parts: `config.json`, `tokenizer.json`, weights in safetensors and, if there are several weight files, their index.
# The parts from a checkpoint are the checkpoint's own files. Inputs: the digest of the parent's manifest, `checkpoint`
# or `weights`, through which lineage continues. Stats: `model` (the configuration as our decoder reads it),
# `vocab_size` (rows of the embeddings, which may exceed the tokenizer's tokens), `end_of_text`, `sequence_tokens`; for
# a checkpoint `run_id` and `step`.

ASSET = "initial"
#: Names of the same asset for a teacher (`training.distillation`) and for a model that generates a bucket's text.
TEACHER = "teacher"
VERSION = "1"


def of_checkpoint(ctx: Context, parent: Manifest, asset: str = ASSET) -> Manifest:
    """Return a manifest of a checkpoint's files. The caller must have verified the checkpoint's signature and lineage.

    Raises:
        CheckpointError: Plinth's decoder does not support the model, or a file is missing.
    """
    known = {name: parent.stats[name] for name in ("run_id", "step") if name in parent.stats}
    return _manifest(ctx, asset, "checkpoint", parent, {}, known)


def of_folder(ctx: Context, folder: Path, licence: str, asset: str = ASSET) -> Manifest:
    """Copy a folder's files into the store and return their manifest, with the license from the recipe.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
        CheckpointError: Plinth's decoder does not support the model.
    """
    held = weights(ctx, folder)
    ctx.refs.save(held)
    return _manifest(ctx, asset, held.asset, held, {"licence": licence}, {})


def of_dcp(ctx: Context, dcp: Path, described_in: Path, licence: str, asset: str = ASSET) -> Manifest:
    """Convert the weights in a DCP folder to safetensors in the store, and return their manifest.

    The manifest of the weights also has the SHA-256 of every file that was read, and the layout of the tensors.

    Args:
        described_in: folder with `config.json` and `tokenizer.json`.

    Raises:
        MissingError: the configuration or the tokenizer is absent.
        CheckpointError: the folder is not a readable DCP folder, or its tensors do not match the configuration.
    """
    texts = {name: _described_file(described_in, name) for name in (CONFIG, TOKENIZER)}
    try:
        config = json.loads(texts[CONFIG])
        model, rows = model_of(config), int(config["vocab_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{described_in / CONFIG} describes no supported model", found=error) from error
    parts = [Part(name=name, blob=ctx.store.put_bytes(text)) for name, text in texts.items()]
    with DcpFolder(dcp, partial(open_file, dcp)) as folder:
        source = DcpWeights(folder, model, rows)
        for name, content in hf_files(source):
            with ctx.store.staging() as path:
                tensor_file.write_chunks(path, content)
                parts.append(Part(name=name, blob=ctx.store.put_file(path)))
        params = {"dcp": folder.digests(source.sources), "layout": source.layout}
    held = Manifest(asset=MODEL_ASSET, step=MODEL_ASSET, version="1", params=params, inputs={}, parts=tuple(parts))
    ctx.refs.save(held)
    return _manifest(ctx, asset, held.asset, held, {"licence": licence}, {})


def _described_file(folder: Path, name: str) -> bytes:
    if not (folder / name).is_file():
        raise MissingError(
            f"{folder} has no {name}",
            expected=f"{CONFIG} and {TOKENIZER} of the model, in Hugging Face's form",
            remedy="copy them there, or set `training.initial.folder` to a folder that has them",
        )
    with open_file(folder, name) as stream:
        return stream.read()


def _manifest(
    ctx: Context, asset: str, kind: str, parent: Manifest, params: Mapping[str, Any], known: Mapping[str, Any]
) -> Manifest:
    wanted = [part for part in parent.parts if part.name in (CONFIG, TOKENIZER, INDEX) or _holds_weights(part.name)]
    stats = _described(ctx, parent) | dict(known)
    step = Step(name=f"training.{asset.rsplit('/', 1)[-1]}", version=VERSION, params=params)
    return context.manifest(asset, step, {kind: parent}, wanted, stats)


def _holds_weights(name: str) -> bool:
    return name.endswith(".safetensors")


def _described(ctx: Context, parent: Manifest) -> dict[str, Any]:
    """Return the model's configuration from the parent's files.

    If it lists several end-of-text tokens, the token that ends documents comes first.
    """
    try:
        ((config,), (_,)) = (parent.named(CONFIG), parent.named(TOKENIZER))
        described = json.loads(ctx.store.read_bytes(config.blob))
        ends = described["eos_token_id"]
        return {
            "model": model_of(described).model_dump(mode="json"),
            "vocab_size": int(described["vocab_size"]),
            "end_of_text": int(ends[0] if isinstance(ends, list) else ends),
            "sequence_tokens": int(described["max_position_embeddings"]),
        }
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{parent.asset} {parent.digest[:12]} cannot be used as initial weights or teacher",
            found=f"{type(error).__name__}: {error}",
            expected=f"the file {CONFIG} of a supported model, with eos_token_id, and the file {TOKENIZER}",
        ) from error


# Compatibility of a recipe with its initial weights. An error lists all differences.
#
# Allowed differences: positions (`rope_theta`, `rope_scaling`, which change for longer contexts), settings for training
# only (`document_mask`, `z_loss`) and for random initial weights (`init`, `init_std`).

#: Fields of `Model` that affect parameters or the forward pass.
SHAPE = (
    *("architecture", "layers", "dim", "heads", "kv_heads", "ffn_dim", "norm_eps", "qk_norm", "qkv_bias"),
    *("tied_embeddings", "mup", "window", "rotary_fraction", "sinks"),
)


def require_agreement(
    store: Store, params: InitialWeights, model: Model, initial: Manifest, tokenizer: Manifest
) -> None:
    """Raise an error if a recipe's model or vocabulary does not match the initial weights.

    Raises:
        RecipeError: the error lists every difference, and the expected values.
    """
    own, theirs = _shape(model), _shape(Model.model_validate(initial.stats["model"]))
    differing = [name for name in own if own[name] != theirs[name]]
    if differing:
        raise RecipeError(
            "training.model differs from the model of training.initial",
            found=_listed(own, differing),
            expected=_listed(theirs, differing),
            remedy="set the expected values in training.model",
        )
    if params.vocabulary == "same":
        require_same_vocabulary(
            store,
            initial,
            tokenizer,
            "training.initial",
            "set `tokenizer.kind: initial` to keep the parent's tokenizer, or set `training.initial.vocabulary: mean`",
        )


def require_same_vocabulary(store: Store, initial: Manifest, tokenizer: Manifest, key: str, remedy: str) -> None:
    """Raise an error if the embedding rows of the weights do not match the tokens of the run's tokenizer.

    Raises:
        RecipeError: the vocabularies differ; the error names the recipe's `key`.
    """
    (ours,), (theirs,) = (one.named(TOKENIZER) for one in (tokenizer, initial))
    rows = tokenizer.stats["vocab_size"], initial.stats["vocab_size"]
    if rows[0] != rows[1] or not same_tokenizer(store, ours.blob, theirs.blob):
        raise RecipeError(
            f"the run's tokenizer differs from the tokenizer of {key}",
            found=f"{TOKENIZER} {ours.blob.sha256[:12]}, {rows[0]} tokens",
            expected=f"{TOKENIZER} {theirs.blob.sha256[:12]}, {rows[1]} rows of embeddings",
            remedy=remedy,
        )


def _shape(model: Model) -> dict[str, Any]:
    experts = None if model.experts is None else model.experts.form
    return {name: getattr(model, name) for name in SHAPE} | {"head_dim": model.head_width, "experts": experts}


def _listed(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names)


# Replay: training text of the parent run, mixed into the text of this run.
#
#     initial ─► checkpoint ─► its run ─► its mixture ─► shards        by lineage, independent of that run's recipe
#
# A bucket `web` of the parent is `replay-web` here. Its streams keep their proportions in the parent's mixture;
# together they have the recipe's share in every part of the run. Text that the parent itself replayed is replayed too;
# planted text is not. Taints and checks of these shards follow the parent's lineage, like those of its weights.
#
# Ibrahim et al. 2024 (arXiv:2403.08763): a small share of the old mixture, 1 to 5%, keeps most of what was learned.

STEP: Final = Step(name="training.replay", version="1")


class ReplayedText(NamedTuple):
    """Replayed shards by bucket, and the number of tokens in each stream of the parent's mixture."""

    shards: dict[str, Manifest]
    tokens: dict[str, int]

    def sequences(self, share: float, sequences: int) -> dict[str, int]:
        """Return the number of sequences to take from each stream, so that replayed text is the fraction `share` of the
        run.

        The numbers are as close to the parent's proportions as possible.
        """
        total, names = sum(self.tokens.values()), sorted(self.tokens)
        counts = largest_remainder([Fraction(self.tokens[name], total) for name in names], round(share * sequences))
        return dict(zip(names, counts, strict=True))


def of_parent(ctx: Context, initial: Manifest, tokenizer: Manifest) -> ReplayedText:
    """Return the training text of the run that produced the initial weights, as shards of this run.

    Raises:
        RecipeError: the weights have no run in this workspace, or the run's text has another tokenizer.
        MissingError: the run's shards no longer exist.
    """
    mixture = _mixture(ctx, initial)
    planted = set(mixture.stats.get("planted", ()))
    tokens = {
        name: own["needed"] * mixture.stats["sequence_tokens"]
        for name, own in mixture.stats["buckets"].items()
        if own["needed"] and name not in planted
    }
    buckets = sorted({bucket_of(name) for name in tokens})
    shards = {bucket: _load(ctx, f"{bucket}/shards", mixture) for bucket in buckets}
    for bucket, made in shards.items():
        _require(ctx, bucket, made, tokenizer)
    return ReplayedText(
        {f"{REPLAYED}{bucket}": _renamed(bucket, made) for bucket, made in shards.items()},
        {f"{REPLAYED}{name}": count for name, count in tokens.items()},
    )


def shards_of(ctx: Context, mixture: Manifest) -> dict[str, Manifest]:
    """Return, by bucket, the shards of the parent's mixture to replay."""
    named = {key: digest for key, digest in mixture.inputs.items() if key.startswith(REPLAYED)}
    return {bucket_of(key): ctx.refs.load(digest) for key, digest in named.items() if key.endswith("/shards")}


def _mixture(ctx: Context, initial: Manifest) -> Manifest:
    parent = initial.inputs.get("checkpoint")
    if parent is None:
        raise RecipeError(
            "training.initial.replay needs initial weights that were trained by a run of Plinth",
            found=f"external weights: {', '.join(initial.inputs)}",
            expected="a `release` or `checkpoint` whose lineage has a mixture",
            remedy="add your own text as a bucket, and remove replay",
        )
    return _load(ctx, "mixture", _load(ctx, "run", ctx.refs.load(parent)))


def _load(ctx: Context, key: str, of: Manifest) -> Manifest:
    try:
        return ctx.refs.load(of.inputs[key])
    except (KeyError, PlinthError) as error:
        found = f"the manifest of {of.asset} {of.digest[:12]} lists {key}, but the manifest of {key} is missing"
        raise _gone(key, found) from error


def _require(ctx: Context, bucket: str, shards: Manifest, tokenizer: Manifest) -> None:
    """Raise an error if shards are missing or were encoded with another tokenizer. Tokenizer files are compared by
    their bytes."""
    ours, theirs = (_file(one) for one in (tokenizer, _load(ctx, "tokenizer", shards)))
    if ours != theirs:
        raise RecipeError(
            f"training.initial.replay: the parent's text {bucket} was encoded with another tokenizer than this run's",
            found=f"{TOKENIZER} {theirs[:12]}",
            expected=f"{TOKENIZER} {ours[:12]}",
            remedy="set `tokenizer.kind: initial` to keep the parent's tokenizer, or remove `training.initial.replay`",
        )
    if not ctx.store.has_all(part.blob for part in shards.parts):
        raise _gone(f"{bucket}/shards", f"blobs of the token shards {shards.digest[:12]} are missing from the store")


def _file(tokenizer: Manifest) -> str:
    (part,) = tokenizer.named(TOKENIZER)
    return part.blob.sha256


def _renamed(bucket: str, shards: Manifest) -> Manifest:
    name = f"{REPLAYED}{bucket}"
    inputs: Mapping[str, Manifest | str] = {"parent/shards": shards} | {
        key.replace(bucket, name, 1): digest for key, digest in shards.inputs.items() if key == f"{bucket}/curated"
    }
    return context.manifest(f"{name}/shards", STEP, dict(inputs), shards.parts, dict(shards.stats))


def _gone(what: str, found: str) -> MissingError:
    return MissingError(
        f"training.initial.replay: {what} of the parent run no longer exists",
        found=found,
        expected="the parent's shards, unchanged",
        remedy="restore the manifests and blobs of the parent's workspace, or remove `training.initial.replay`",
    )
