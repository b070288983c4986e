"""The user's YAML as frozen models: one complete description of a run.

    corpus     buckets, sources, extraction, annotators, policy, dedup, holdout, contamination
    spans      the rest of dedup: look-alikes by vectors, repeated lines, repeated passages
    tokens     tokenizer, shards, mixture
    training   decoder, optimizer, parallel, checkpoints, launching
    release    evaluation, gates, approval, promotion
    lines      YAML that knows the line of every key
    columns    checks against what the annotators offer, and the licence gate
    extends    follow `extends:` to files and packaged recipes
    load       validate; every problem by file, key and line
    reference  docs/recipe.md, written from the models

Identity: stages take only the section they need, so that a change elsewhere re-runs nothing.
"""

from plinth.corpus.sources.parameters import Bucket, Source, Terms
from plinth.recipe.recipe import Recipe

__all__ = ["Bucket", "Recipe", "Source", "Terms"]
