"""Replay: text of the run that gave the first weights, among the text of the run that begins from them.

    initial ─► checkpoint ─► its run ─► its mixture ─► shards        by lineage, whatever the recipe of that run was

A bucket `web` of the parent is `replay-web` here. Its streams keep the shares that they had in the parent's mixture;
together they take the share of every stretch of the run that the recipe states. A parent that replayed hands that on.
Planted text is not replayed. What is behind these shards is judged with the parent, as what is behind its weights.

Ibrahim et al. 2024 (arXiv:2403.08763): a small share of the old mixture, 1 to 5%, keeps most of what was learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError, RecipeError
from plinth.model.hugging_face import TOKENIZER
from plinth.records import Manifest, Step, bucket_of
from plinth.tokens.mixture.apportion import largest_remainder
from plinth.training.parameters.initial import REPLAYED

STEP: Final = Step(name="training.replay", version="1")


class ReplayedText(NamedTuple):
    """Shards by bucket, and how much of the parent's mixture each stream was, in tokens."""

    shards: dict[str, Manifest]
    tokens: dict[str, int]

    def sequences(self, share: float, sequences: int) -> dict[str, int]:
        """Sequences of each stream that together are a share of a run, as near to the parent's shares as can be."""
        total, names = sum(self.tokens.values()), sorted(self.tokens)
        counts = largest_remainder([Fraction(self.tokens[name], total) for name in names], round(share * sequences))
        return dict(zip(names, counts, strict=True))


def of_parent(ctx: Context, initial: Manifest, tokenizer: Manifest) -> ReplayedText:
    """What the run that gave the first weights was trained on, as shards of this run.

    Raises:
        RecipeError: the weights have no run of this workspace, or its text was tokenised otherwise.
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
    """The replayed shards that a mixture names, by bucket."""
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
    """Refuse shards that are gone, or of another tokenizer: by the bytes of its file."""
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
