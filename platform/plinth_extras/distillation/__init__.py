"""Distillation: a run whose loss is mixed with the divergence from a teacher, a model that exists.

    hook            what a recipe says of it; checks, teacher and stored logits of a run, as a training hook
    teacher         the teacher on a rank; what it says of every sequence of a run, stored once (imports torch)
    stored_logits   the files of the asset `teacher_logits`, read by position; its stage

The loss itself is `plinth.model.loss`. The teacher is found and proved as `initial` weights are; its digest is
in the run's key and among the inputs of its `run`, so that lineage and taint go through it.
"""
