"""The bottleneck of a run: its steps' time by part, against the measured speed of its machine.

    bottleneck   the roofline of a run, and the rule: the first cause, and the speed of a step without it
    page         its section of the page of the run
    command      `plinth run roofline`

The time of the mean step by part, and the speed of a machine, are `plinth.training.telemetry.step_parts` and
`machine_speed`. The goodput ledger (telemetry) has the rest of a run's time: queue, start, restore, lost work.
"""
