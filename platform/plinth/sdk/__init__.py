"""Client for a team's own trainer: Plinth's data order, timeline and checkpoint commits in any training loop.

    recipe: training.trainer.command ──► launcher ──► supervisor ──► one process per rank: the command
                                                                        │
    with plinth.sdk.run() as run:                                       ▼
        data.StepBatches(run.config, …)   micro batches of a rank, in Plinth's order
        run.step(n, loss=…)               an event of the timeline; False once the run must stop
        run.commit(folder, n)             the trainer's files as a signed checkpoint

    data        the order as `torch` datasets, and batches in the forms that trainers take
    rank_run    a run on one rank: resume, events, stop requests, exit status
    commit      stage, hash and commit a trainer's folder, with its statement
    callbacks/  the calls above for transformers, Lightning and OLMo-core; import them by module

Each rank needs torch and the base installation. The trainer computes the steps, so its candidate states that a resume
is not proved. Plinth replays sampled steps as proof of order and data (forensics.sampled). Does not belong here: data
order (tokens), Plinth's own loop (training).
"""

from plinth.sdk.rank_run import Run, run

__all__ = ["Run", "run"]
