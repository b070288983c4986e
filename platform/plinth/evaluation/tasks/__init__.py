"""Tasks of lm-evaluation-harness on a checkpoint, from local files, offline.

    job         the asset: one child process for lm-evaluation-harness, one for the model, and their protocol;
                estimates of every metric; import of the folder of task files
    lm          `CheckpointLM`: lm-evaluation-harness' model class over the engine (lm_eval)
    harness     loading of tasks, detection of damaged documents, evaluation of one task (lm_eval)
    __main__    `python -m plinth.evaluation.tasks CONFIG`: the child that runs lm-evaluation-harness

lm-evaluation-harness builds the prompts and judges the answers; it has no model. Its requests go to the parent, which
passes them to `plinth.evaluation.engine`. Plinth does not use the standard errors of lm-evaluation-harness, nor its
cache of answers, which is not keyed by the model. Intervals come from `plinth.evaluation.statistics`. A finished task
is a record in the step cache, keyed by the digests of checkpoint and task files.
"""
