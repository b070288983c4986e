"""Game days: one injected fault in a rehearsal of its own, and whether the promised behavior holds.

    gameday ──► days/ ──► play ──► scratch folder, root of trust, watch on everything else
                  │         └────► record ──► signed_record, page
                  └──► rehearsal ──► warm_job ──► supervisor ──► ranks: faults

    gameday        the records (what is stated before, findings, verdict), and the game days by name
    play           prepare once, strike at every instant, judge; the scratch folder, and what may not happen there
    signed_record  the signed log of game days, and the page of a record
    rehearsal      a small run with its undisturbed end, and what is compared with it
    warm_job       jobs whose processes are forked from one that has loaded torch; `loaded` is what it has loaded
    faults         what happens inside these processes, at which step, on which rank
    days/          the game days: checkpoints, jobs, data, trust, orchestrator, MLflow, releases
    command        `plinth ops gameday`

Needs no torch before a rehearsal trains.
"""
