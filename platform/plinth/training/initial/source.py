"""The asset `initial`: the files that a run begins from, by content.

Parts: `config.json`, `tokenizer.json`, weights in safetensors and, of several, their index; of a checkpoint they are
its own. Inputs: the digest of the parent's manifest, `checkpoint` or `weights`, through which lineage goes on. Stats:
`model` (what our decoder makes of the configuration), `vocab_size` (rows of the embeddings, which may be more than the
tokenizer has tokens), `end_of_text`, `sequence_tokens`; of a checkpoint `run_id` and `step`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import CheckpointError
from plinth.evaluation.comparison.job import weights
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER, model_of
from plinth.records import Manifest, Step

ASSET = "initial"
#: The same of the model that a run learns from (`training.distillation`), or that writes the text of a bucket.
TEACHER = "teacher"
VERSION = "1"


def of_checkpoint(ctx: Context, parent: Manifest, asset: str = ASSET) -> Manifest:
    """The manifest of a checkpoint's files, whose signature and lineage the caller has proved.

    Raises:
        CheckpointError: our decoder does not compute the model, or a file is missing.
    """
    known = {name: parent.stats[name] for name in ("run_id", "step") if name in parent.stats}
    return _manifest(ctx, asset, "checkpoint", parent, {}, known)


def of_folder(ctx: Context, folder: Path, licence: str, asset: str = ASSET) -> Manifest:
    """The manifest of a folder's files, copied into the store, with the licence that the recipe states.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
        CheckpointError: our decoder does not compute the model.
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
    """What the configuration says; a list of ends of text begins with the one that documents end with."""
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
