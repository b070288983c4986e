"""Past steps, examined from checkpoints and manifests.

    replay          loss by document of a step, and blame; one process
    step_losses     the losses of a step's batch, token by token, under a checkpoint
    blame           excess loss by document, source and bucket
    audit           replays a stretch of a run and compares: the evidence that a resume is exact
    tolerance       how far two replays are apart on this hardware, where kernels are not deterministic
    proof           that evidence, read again and tied to a checkpoint
    audit_span      the checkpoints between which an audit replays
    offline_audit   an audit of a run that is not training now
"""
