"""The bottleneck of a run: its steps' time by part, against the measured speed of its machine.

    bottleneck   the roofline of a run and the rule for its bottleneck; the section of a run's page
    command      `plinth run roofline`

The time of the mean step by part, and the speed of a machine, are `plinth.training.telemetry.step_parts` and
`machine_speed`. The goodput ledger (telemetry) has the rest of a run's time: queue, start, restore, lost work.
"""
