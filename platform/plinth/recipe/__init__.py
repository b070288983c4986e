"""The user's YAML as frozen models: one complete description of a run.

    corpus     buckets, sources, extraction, annotators, policy, dedup, holdout, contamination
    tokens     tokenizer, shards, mixture, phases
    training   model, optimizer, schedule, parallelism, checkpoints, launch
    release    evaluation, gates, approval, promotion
    load       read YAML, follow `extends:`, refuse unknown keys by file, key and line

Identity: stages take only the section they need, so that a change elsewhere re-runs nothing.
"""

from plinth.recipe.corpus import Bucket, Source, Terms
from plinth.recipe.model import Recipe

__all__ = ["Bucket", "Recipe", "Source", "Terms"]
