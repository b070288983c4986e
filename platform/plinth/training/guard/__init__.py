"""The guard: every step is judged by rules; findings in a row become an intervention.

    TrainedStep ──► rules: finding? ──► state_machine: confirmed? ──► warn · skip · lower_lr · rollback · stop
                      ▲                          │
                      └──── rolling levels ◄─────┘   limits of the next steps ──► engine.skipped_update

    rules           TrainedStep, Limits, Finding, Intervention; the heuristics over a window of numbers; the rule on
                    throughput; screening: rules over the text of a batch, judged before its update
    state_machine   Guard: streaks, windows left out, learning rate, bounds; its state is part of a checkpoint

Decisions are a pure function of numbers that all ranks share, so ranks need not agree on them.
Does not belong here: what a rollback loads (loop, checkpoint/), the documents of a window (window_documents), the loss
of a document (forensics/).
"""
