"""Tasks of lm-evaluation-harness on a checkpoint, from local files, without a network.

    job         the asset: one child for lm-evaluation-harness, one for the model; their questions and answers;
                estimates of every metric; the folder of task files, by content
    lm          `CheckpointLM`: lm-evaluation-harness' model class over the engine (lm_eval)
    harness     loads tasks, finds damaged documents, runs one task (lm_eval)
    __main__    `python -m plinth.evaluation.tasks CONFIG`: the child that runs lm-evaluation-harness

lm-evaluation-harness makes the prompts and judges the answers; it has no model. Its questions go to the parent, which
puts them to `plinth.evaluation.engine`. Its own standard errors and its cache of answers, whose key lacks the model,
are not used: intervals come from `plinth.evaluation.statistics`, and a finished task is a record of the step cache
under the digests of checkpoint and task files.
"""
