"""`events.jsonl`: the timeline of a run.

    timeline    every event and its fields; append, read, follow, one value per step
    run_figures the figures that people quote of a run: final loss, median step time, median tokens per second
    step_clock  the time of a step by part, by the host's clock or by the device's events
    communication   the part in which computation waits for collectives (torch)
    stragglers  ranks that are slower than their like (torch)
    profile_request   steps of which a trace is asked for
    profiler    traces of them (torch)
    memory      memory of a rank, on the host and on the device
    devices     the GPUs of a node: utilisation, power, temperature, errors (NVML)
    pulse       the sign that a rank works through a long phase
    goodput/    every rank-second of a run by its cause: goodput and badput
"""
