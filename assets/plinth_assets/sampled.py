"""`{bucket}/teacher` and `{bucket}/sampled`: a model, and the text that it writes for a bucket."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.sources import files
from plinth.corpus.sources.files import STAGE, SampledText
from plinth.corpus.sources.parameters import Bucket
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.training import sampled_text
from plinth.training.initial.source import TEACHER
from plinth.training.parameters.initial import InitialWeights
from plinth_assets import initial
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Both, of every bucket whose source is a model."""
    models = [(name, bucket) for name, bucket in recipe.corpus.buckets.items() if written(name, bucket)]
    return [stage for each in models for stage in _of(*each)]


def written(name: str, bucket: Bucket) -> tuple[str, ...]:
    """The asset of the text that a model writes for a bucket, where one does."""
    return (f"{name}/{STAGE}",) if bucket.sources[0].kind == files.KIND else ()


def _of(name: str, bucket: Bucket) -> list[Stage]:
    source = bucket.sources[0]
    params, teacher = SampledText.model_validate(source.options), f"{name}/{TEACHER}"
    return [
        initial.stage(teacher, InitialWeights.named(source.path), bucket.owner),
        Stage(
            asset=f"{name}/{STAGE}",
            deps=(teacher,),
            make=partial(_make, name, params),
            version=sampled_text.VERSION,
            params=params.model_dump(mode="json"),
            group="sources",
            description=f"Text of {name}, as {source.path} writes it.",
            owner=bucket.owner,
            kinds=("pytorch",),
            present=_present,
            pool="training",
        ),
    ]


def _make(name: str, params: SampledText, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return sampled_text.run(ctx, name, params, inputs[f"{name}/{TEACHER}"])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    return dict(made.stats)
