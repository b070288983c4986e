"""Game days: one injected fault in a rehearsal of its own, and whether the promised behavior holds.

    gameday ──► *_days ──► play ──► scratch folder, root of trust, watch on everything else
                  │          └────► record ──► signed_record
                  └──► rehearsal ──► warm_job ──► supervisor ──► ranks: faults

    gameday        the records (what is stated before, findings, verdict), and the game days by name
    play           prepare once, strike at every instant, judge; the scratch folder, and what may not happen there
    signed_record  the signed log of game days, and the page of a record
    rehearsal      a small run with its undisturbed end, and what is compared with it
    warm_job       jobs whose processes are forked from one that has loaded torch; `loaded` is what it has loaded
    faults         what happens inside these processes, at which step, on which rank
    command        `plinth ops gameday`

    checkpoint_days   a corrupted checkpoint, a partial write, a full disk
    data_days         a bad shard, a poisoned batch, storage that stalls
    run_days          a preemption, a lost node, a clock that jumps; a revoked key; MLflow away
    orchestrator_day  Dagster is killed; `orchestrated` is the Dagster that is killed
    release_day       a bad release: detect, taint, roll back, find the cause, close the gate

Needs no torch before a rehearsal trains.
"""
