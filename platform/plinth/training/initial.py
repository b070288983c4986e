"""Begin a run from weights that exist: a release, a checkpoint, or a folder in Hugging Face's layout.

    recipe ─► asset `initial`: verified, hashed, in the store ─► agreement with the recipe ─► every rank reads its share

Here are the manifest of the asset, its agreement with a recipe, and the replay of the parent's text; no torch. Ranks
read the weights by `engine.weights`.

The digest of the manifest is in the run's key and among the inputs of its `run`, so that lineage, taint and takedown go
through the parent. Does not belong here: the optimizer's
state of the parent (checkpoint.resume), whose name a release has and whether its signature holds (registry).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import CheckpointError, MissingError, PlinthError, RecipeError
from plinth.evaluation.comparison.models import weights
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER, model_of
from plinth.model.parameters import Model
from plinth.records import Manifest, Step, bucket_of
from plinth.storage.store import Store
from plinth.tokens.mixture.apportion import largest_remainder
from plinth.tokens.tokenizer.template import same_tokenizer
from plinth.training.parameters.initial import REPLAYED, InitialWeights

# The asset `initial`: the files that a run begins from, by content.
#
# Parts: `config.json`, `tokenizer.json`, weights in safetensors and, of several, their index; of a checkpoint they are
# its own. Inputs: the digest of the parent's manifest, `checkpoint` or `weights`, through which lineage goes on. Stats:
# `model` (what our decoder makes of the configuration), `vocab_size` (rows of the embeddings, which may be more than
# the tokenizer has tokens), `end_of_text`, `sequence_tokens`; of a checkpoint `run_id` and `step`.

ASSET = "initial"
#: The same of the model that a run learns from (`training.distillation`), or that writes the text of a bucket.
TEACHER = "teacher"
VERSION = "1"


def of_checkpoint(ctx: Context, parent: Manifest, asset: str = ASSET) -> Manifest:
    """Return the manifest of a checkpoint's files; the caller has verified its signature and lineage.

    Raises:
        CheckpointError: our decoder does not support the model, or a file is missing.
    """
    known = {name: parent.stats[name] for name in ("run_id", "step") if name in parent.stats}
    return _manifest(ctx, asset, "checkpoint", parent, {}, known)


def of_folder(ctx: Context, folder: Path, licence: str, asset: str = ASSET) -> Manifest:
    """Return the manifest of a folder's files, copied into the store, with the license in the recipe.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
        CheckpointError: our decoder does not support the model.
    """
    held = weights(ctx, folder)
    ctx.refs.save(held)
    return _manifest(ctx, asset, held.asset, held, {"licence": licence}, {})


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
    """Return the content of the configuration; a list of end-of-text tokens begins with the one that ends documents."""
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
            f"no run can begin from, or learn from, {parent.asset} {parent.digest[:12]}",
            found=f"{type(error).__name__}: {error}",
            expected=f"{CONFIG} of a model that our decoder computes, with eos_token_id, and {TOKENIZER}",
        ) from error


# Whether a recipe can go on from given weights: every difference is named at once.
#
# Free to differ are positions (`rope_theta`, `rope_scaling`: a run on longer contexts changes them), what only training
# uses (`document_mask`, `z_loss`) and what made the parent's own first weights (`init`, `init_std`).

#: Fields of `Model` that shape parameters, or decide what is computed with them.
SHAPE = (
    *("architecture", "layers", "dim", "heads", "kv_heads", "ffn_dim", "norm_eps", "qk_norm", "qkv_bias"),
    *("tied_embeddings", "mup"),
)


def require_agreement(
    store: Store, params: InitialWeights, model: Model, initial: Manifest, tokenizer: Manifest
) -> None:
    """Refuse a model or a vocabulary that differs from the weights.

    Raises:
        RecipeError: lists every difference, and the expected values.
    """
    own, theirs = _shape(model), _shape(Model.model_validate(initial.stats["model"]))
    differing = [name for name in own if own[name] != theirs[name]]
    if differing:
        raise RecipeError(
            "training.model is not the model of training.initial",
            found=_listed(own, differing),
            expected=_listed(theirs, differing),
            remedy="write the expected values into training.model",
        )
    if params.vocabulary == "same":
        require_same_vocabulary(
            store,
            initial,
            tokenizer,
            "training.initial",
            "set tokenizer.kind: initial to go on with the parent's, or training.initial.vocabulary: mean",
        )


def require_same_vocabulary(store: Store, initial: Manifest, tokenizer: Manifest, key: str, remedy: str) -> None:
    """Refuse weights whose embedding rows do not match the tokens of the run.

    Raises:
        RecipeError: names the recipe's `key`.
    """
    (ours,), (theirs,) = (one.named(TOKENIZER) for one in (tokenizer, initial))
    rows = tokenizer.stats["vocab_size"], initial.stats["vocab_size"]
    if rows[0] != rows[1] or not same_tokenizer(store, ours.blob, theirs.blob):
        raise RecipeError(
            f"the run's tokenizer is not that of {key}",
            found=f"{TOKENIZER} {ours.blob.sha256[:12]}, {rows[0]} tokens",
            expected=f"{TOKENIZER} {theirs.blob.sha256[:12]}, {rows[1]} rows of embeddings",
            remedy=remedy,
        )


def _shape(model: Model) -> dict[str, Any]:
    return {name: getattr(model, name) for name in SHAPE} | {"head_dim": model.head_width}


def _listed(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names)


# Replay: text of the run that gave the first weights, among the text of the run that begins from them.
#
#     initial ─► checkpoint ─► its run ─► its mixture ─► shards        by lineage, whatever the recipe of that run was
#
# A bucket `web` of the parent is `replay-web` here. Its streams keep the shares that they had in the parent's mixture;
# together they take the share of every stretch of the run that the recipe states. A parent that replayed hands that on.
# Planted text is not replayed. What is behind these shards is judged with the parent, as what is behind its weights.
#
# Ibrahim et al. 2024 (arXiv:2403.08763): a small share of the old mixture, 1 to 5%, keeps most of what was learnt.

STEP: Final = Step(name="training.replay", version="1")


class ReplayedText(NamedTuple):
    """Shards by bucket, and the tokens of each stream in the parent's mixture."""

    shards: dict[str, Manifest]
    tokens: dict[str, int]

    def sequences(self, share: float, sequences: int) -> dict[str, int]:
        """Return the number of sequences of each stream for a share of a run, as close to the parent's shares as
        possible.
        """
        total, names = sum(self.tokens.values()), sorted(self.tokens)
        counts = largest_remainder([Fraction(self.tokens[name], total) for name in names], round(share * sequences))
        return dict(zip(names, counts, strict=True))


def of_parent(ctx: Context, initial: Manifest, tokenizer: Manifest) -> ReplayedText:
    """Return the training text of the run that produced the initial weights, as shards of this run.

    Raises:
        RecipeError: the weights have no run in this workspace, or its text has another tokenizer.
        MissingError: its shards are gone.
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
    """Return the replayed shards of a mixture, by bucket."""
    named = {key: digest for key, digest in mixture.inputs.items() if key.startswith(REPLAYED)}
    return {bucket_of(key): ctx.refs.load(digest) for key, digest in named.items() if key.endswith("/shards")}


def _mixture(ctx: Context, initial: Manifest) -> Manifest:
    parent = initial.inputs.get("checkpoint")
    if parent is None:
        raise RecipeError(
            "training.initial.replay needs weights of a run",
            found=f"weights from outside: {', '.join(initial.inputs)}",
            expected="a `release` or `checkpoint`, whose mixture the lineage names",
            remedy="add text of your own as a bucket, and leave replay out",
        )
    return _load(ctx, "mixture", _load(ctx, "run", ctx.refs.load(parent)))


def _load(ctx: Context, key: str, of: Manifest) -> Manifest:
    try:
        return ctx.refs.load(of.inputs[key])
    except (KeyError, PlinthError) as error:
        raise _gone(key, f"the manifest of {of.asset} {of.digest[:12]} names it, and it is not here") from error


def _require(ctx: Context, bucket: str, shards: Manifest, tokenizer: Manifest) -> None:
    """Refuse shards that are gone, or have another tokenizer: by the bytes of its file."""
    ours, theirs = (_file(one) for one in (tokenizer, _load(ctx, "tokenizer", shards)))
    if ours != theirs:
        raise RecipeError(
            f"training.initial.replay: the parent's {bucket} was tokenised otherwise than this run",
            found=f"{TOKENIZER} {theirs[:12]}",
            expected=f"{TOKENIZER} {ours[:12]}",
            remedy="set tokenizer.kind: initial to keep the parent's, or leave replay out",
        )
    if not ctx.store.has_all(part.blob for part in shards.parts):
        raise _gone(f"{bucket}/shards", f"blobs of {shards.digest[:12]} are not in the store")


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
        f"training.initial.replay: {what} of the run that the weights come from is gone",
        found=found,
        expected="the parent's shards, as it was trained on them",
        remedy="bring the workspace of the parent back (its manifests and blobs), or leave replay out",
    )
