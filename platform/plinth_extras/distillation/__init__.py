"""Distillation: a run whose loss is mixed with the divergence from a teacher, a model that exists.

    parameters      what a recipe says of it
    hook            checks, teacher and stored logits of a run, as a training hook
    teacher         the teacher on a rank: its states of a batch, or what it said before (imports torch)
    teacher_logits  the asset: what a teacher says of every sequence of a run, stored once (imports torch)
    stage           its Dagster stage
    stored_logits   its files, read by position

The loss itself is `plinth.model.loss`. The teacher is found and proved as `initial` weights are; its digest is
in the run's key and among the inputs of its `run`, so that lineage and taint go through it.
"""
