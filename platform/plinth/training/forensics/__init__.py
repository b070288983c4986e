"""Past steps, examined from checkpoints and manifests.

    replay          the losses of a step's batch under a checkpoint, and blame: excess loss by document, source and
                    bucket; one process
    audit           replays a stretch of a run and compares: the evidence that a resume is exact
    proof           an audit of a run that is not training now; its evidence, read again and tied to a checkpoint
"""
