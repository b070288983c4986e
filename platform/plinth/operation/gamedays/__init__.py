"""Game days: one fault on purpose, in a rehearsal of its own, and whether what is promised about it holds.

    table ──► days/ ──► play ──► scratch: folder, root of trust, watch on everything else
                │         └────► gameday: record ──► signed_record, page
                └──► rehearsal ──► warm_job ──► supervisor ──► ranks: faults, boundaries

    gameday        the records: what is stated before, findings, verdict
    table          the game days by name
    play           prepare once, strike at every instant, judge
    scratch        where it is played, and what it may not do
    signed_record  the log of records in a workspace
    page           their pages
    alerting       whether the right alert fires in time

    rehearsal      a small run with the end that nothing disturbed, and what is compared with it
    warm_job       jobs whose processes are forked from one that has loaded torch; loaded is what it has loaded
    faults         what happens inside these processes, at which step, on which rank
    boundaries     strike at the k-th change that a process makes to a file system
    faulty_line    a proxy that stalls or is cut
    days/          the game days: checkpoints, jobs, data, trust

Needs no torch before a rehearsal trains. Does not belong here: game days of MLflow (`plinth_jobs.gamedays`).
"""
