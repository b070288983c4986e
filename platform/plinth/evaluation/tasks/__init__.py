"""Tasks of lm-evaluation-harness on a checkpoint, from local files, offline.

    job         the asset: one child process for lm-evaluation-harness, one for the model, and their protocol;
                estimates of every metric; import of the folder of task files
    lm          `CheckpointLM`: lm-evaluation-harness' model class over the engine (lm_eval)
    harness     loading of tasks, detection of damaged documents, evaluation of one task (lm_eval)
    __main__    `python -m plinth.evaluation.tasks CONFIG`: the child that runs lm-evaluation-harness

lm-evaluation-harness builds the prompts and judges the answers, but does not load the model. Its requests go to the
parent process, which passes them to `plinth.evaluation.engine`. Plinth uses neither the standard errors of
lm-evaluation-harness nor its answer cache, which is not keyed by the model. Intervals come from
`plinth.evaluation.statistics`. The step cache has one record per finished task, keyed by the digests of checkpoint and
task files.
"""
