"""Past steps, examined offline: documents, losses, audits.

audit           The proof that a resume is exact: replay a stretch of a run from a committed checkpoint and compar
audit_span      Which checkpoints an audit replays between; files only, so that the command line can ask first.
blame           From losses to names: which documents, sources and buckets a step's loss came from.
offline_audit   An audit of a run that is not training now, asked for by a person: ranks are started, and end when
replay          What happened at a step, looked at offline from checkpoints and manifests alone; one process, no s
step_documents  Which documents a step of a run saw, with their source: from the run's manifests alone, without to
step_losses     Losses of a past step's batch, token by token, under the parameters of a checkpoint; offline, in o
"""
