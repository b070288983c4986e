"""Analysis of past steps from checkpoints and manifests.

    replay          losses of a step's batch under a checkpoint, and blame (excess loss by document, source and
                    bucket), in one process
    audit           replay of a range of steps, as evidence that a resume is exact
    sampled         replay of sampled steps of an external trainer, as evidence of its order and data
    proof           audit of a run that is not training; verification of the audit's evidence for a checkpoint
    order_proof     verification of the evidence about an external trainer
"""
