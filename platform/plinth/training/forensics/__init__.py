"""Past steps, examined from checkpoints and manifests.

    replay          loss by document of a step, and blame; one process
    step_losses     the losses of a step's batch, token by token, under a checkpoint
    blame           excess loss by document, source and bucket
    audit           replays a stretch of a run and compares: the evidence that a resume is exact
    proof           that evidence, read again and tied to a checkpoint
    offline_audit   an audit of a run that is not training now
"""
