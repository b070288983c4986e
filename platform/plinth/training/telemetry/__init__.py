"""`events.jsonl`: the timeline of a run.

    timeline    every event and its fields; append, read, follow, one value per step
    run_figures the figures that people quote of a run: final loss, median step time, median tokens per second
    step_clock  the time of a step by part, by the host's clock or by the device's events
    communication   the part in which computation waits for collectives (torch)
    stragglers  ranks that are slower than their like (torch)
    profiler    traces of chosen steps, and the request for them in the run's directory
    memory      memory of a rank, on the host and on the device
    devices     the GPUs of a node: utilisation, power, temperature, errors (NVML)
    goodput/    every rank-second of a run by its cause: goodput and badput
"""
