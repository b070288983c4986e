"""The guard: rules judge every step; consecutive findings become an intervention.

    TrainedStep ──► rules: finding? ──► state_machine: confirmed? ──► warn · skip · lower_lr · rollback · stop
                      ▲                          │
                      └──── rolling levels ◄─────┘   limits of the next steps ──► engine.skipped_update

    rules           TrainedStep, Limits, Finding, Intervention; heuristics over a window of numbers; the throughput
                    rule; screening: rules over the text of a batch, before its update
    state_machine   Guard: streaks, skipped windows, learning rate, bounds; its state is part of a checkpoint

Decisions are a pure function of numbers that all ranks share, so all ranks decide the same without communication.
Does not belong here: loading for a rollback (loop, checkpoint/), documents of a window (step_documents), losses of
documents (forensics/).
"""
