"""The bottleneck of a run: its steps' time by part, against what its machine was measured to do at most.

    step_parts   the time of the mean step: compute, exposed communication, input, checkpoint, host; from the timeline
    bottleneck   the rule: which cause comes first, and how much faster a step without it would be
    machine_speed   FLOP/s and bandwidth of a machine, measured once and kept in the workspace
    probe        the process that measures them (torch)
    run_roofline   all of it for one run

The goodput ledger (telemetry) has the rest of a run's time: queue, start, restore, evaluation, lost work.
"""
