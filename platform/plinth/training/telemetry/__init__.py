"""`events.jsonl`: the timeline of a run.

    timeline    every event and its fields; append, read, follow, one value per step
    run_figures the figures that people quote of a run: final loss, median step time, median tokens per second
    step_clock  the time of a step by part, by the host's clock or by the device's events
    step_parts  the time of the mean step: compute, exposed communication, input, checkpoint, host
    machine_speed   FLOP/s and bandwidth of a machine, measured once and kept in the workspace
    machine_probe   the process that measures them (torch)
    communication   the part in which computation waits for collectives (torch)
    stragglers  ranks that are slower than their like (torch)
    profiler    traces of chosen steps, and the request for them in the run's directory
    memory      memory of a rank, on the host and on the device
    devices     the GPUs of a node: utilisation, power, temperature, errors (NVML)
    goodput/    every rank-second of a run by its cause: goodput and badput
"""
