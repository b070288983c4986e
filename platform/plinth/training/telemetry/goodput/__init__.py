"""The goodput ledger: every rank-second that the jobs of a run asked for or held, by its cause, from `events.jsonl`.

    ledger      causes; what was held by attempt and cause, and its sums: plain records
    account     the rules: which cause each event gives to the time before it

    submitted ── queue ──▶ job_started ── start ──▶ run_started ── restore ──▶ resumed ── start ──▶ steps ──▶ finished
                                ▲                                                                      │
                                └── idle (back-off), start ◀── redone work │ hang │ node loss ─────────┘

A step says itself what its time was (step_clock), and what lay between it and the step before; time that no step
accounts for belongs to what the next event says had been going on. An event may change what earlier time was: steps
after the checkpoint that a run goes on from are redone work, and those that a rollback takes back are the guard's. The
account after an event depends on no later one, so that a run that is followed and its file read years later give the
same. Time is whole microseconds of the events' clock, which never goes back: causes add up to the whole exactly.

Causes are those of ml-goodput-measurement, divided further. The leading rank's division of a step stands for all ranks:
ranks that wait for a slower one do so in the communication of a step, which is goodput here (see step_parts).

Does not belong here: what a rank-second costs, which runs are looked at together.
"""
