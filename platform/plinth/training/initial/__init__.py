"""Begin a run from weights that exist: a release, a checkpoint, or a folder in Hugging Face's layout.

    recipe ─► asset `initial`: verified, hashed, in the store ─► agreement with the recipe ─► every rank reads its share

    source       the manifest of the asset `initial`: files of a checkpoint or folder, by content
    agreement    whether a recipe's model, vocabulary and optimizer can go on from it; differences by name
    replay       the parent's text among the run's own, by lineage
    weights      the initial weights of any part of any parameter, read from those files (imports torch)

The digest of the manifest is in the run's key and among the inputs of its `run`, so that lineage, taint and takedown go
through the parent. Does not belong here: the optimizer's
state of the parent (checkpoint.kept_optimizer), whose name a release has and whether its signature holds (registry).
"""
