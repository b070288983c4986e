"""The guard: what is seen of every step, judged by rules, becomes an intervention; never the other way round.

    seen ──► rules: suspicious? ──► machine: confirmed? ──► warn · skip · lower_lr · rollback · stop
                ▲                        │
                └── rolling levels ◄────┘        limits of the next steps ──► veto (on the device)

    records   Seen, Limits, Intervention
    rolling   a window of numbers with level and spread
    rules     the published heuristics, each from numbers to a finding
    machine   Guard: streaks, windows left out, learning rate, bounds; its state is part of a checkpoint
    pace      throughput; a clock, so never part of a checkpoint
    documents the documents of a window, named on the timeline by a thread of the leading rank
  with torch:
    veto      the update of a bad step is not made, in any ZeRO stage, without asking the host

Decisions are a pure function of numbers that all ranks share, so ranks need not agree on them.
Does not belong here: what a rollback loads (loop, snapshot), which loss a document had (forensics).
"""
