"""Distillation: a run whose loss is mixed with the divergence from a teacher, a model that exists.

    parameters   what a recipe says of it
    teacher      the teacher on a rank: its states of a batch (imports torch)

The loss itself is `plinth.model.distillation`. The teacher is found and proved as `initial` weights are; its digest is
in the run's key and among the inputs of its `run`, so that lineage and taint go through it.
"""
