"""Train one model from a mixture, so that a stop at any moment costs only time.

    job ──► launcher ──► supervise ──► one process per rank: __main__ ──► loop ──► trainer ──► engine
     ▲                       │                                             │
     │                       │                              saving ──► writer, one process beside each rank
     │                       │                                             │
     └──── events.jsonl ◄────┴─────────────────────────────────────────────┴──► checkpoints/

One run:

    parameters/  what a recipe sets of a run, and of each part of one
    config       RunConfig: everything one run needs, resolved; `identity` names what must match
    preparation  recipe, data and weights to a RunConfig, with what only both together can refuse
    directory    where the files of a run lie
    run_state    whether a run lives; which runs are open and which wrote last
    hooks        features that take part in a run: their records, the order of calls
    initial      weights to begin from: resolved, compared with the recipe; the parent's text among the run's own
    job          submit or find, follow, cancel; another batch or length for steps that a run has not taken yet
    step_documents  the documents of a step with their sources; those of an intervention's window, on the timeline
    manifests    the manifests of the assets `run` and `checkpoint`, and facts that differ each time
    __main__     one rank: train or audit

The steps of a rank (these modules import torch):

    data         batches of a rank from any step
    sampled_text text that a model writes for a bucket
    rank_hook    the part on a rank of a feature that takes part in a run
    loop         the training loop: steps with timeline, checkpoints and guard
    trainer      the steps of one rank: the same for a run, an audit and a replay
    averaging    the mean of several checkpoints, or the mean of weights that one keeps, as a checkpoint
    engine/      DeepSpeed behind a few methods
    parallel/    one model over several devices

Around the steps:

    attempts     which code trains on which machines, stated at every start of the ranks
    supervise/   start the ranks, restart them within bounds, watch them; several nodes
    checkpoint/  commit, verify, select, resume on any layout, upload; writer is the process that writes
    guard/       spikes and divergence: find, confirm, skip or roll back
    stopping     rules that end a run: budgets, plateau, regression, reuse
    validation/  bits per byte of held-out text during a run
    telemetry/   events.jsonl: write, read, count lost work
    sinks/       the timeline in TensorBoard, Weights & Biases and Prometheus
    forensics/   past steps: their documents and losses, blame, and the audit that proves a resume exact

The control plane imports what needs no torch: parameters, config, preparation, directory, run_state, job, initial,
manifests, attempts, stopping, supervise/, sinks/, the files of checkpoint/, what of
telemetry/ is not marked (torch) in its map, step_documents, and proof of forensics/.
Does not belong here: where a job runs (launch/), what a batch holds (tokens/), what is trained (model/).
"""
