"""`events.jsonl`: the timeline of a run.

    timeline    every event and its fields; append, read, follow, one value per step; the figures that people quote of a
                run: final loss, median step time, median tokens per second
    step_clock  the time of a step by part, by the host's clock or by the device's events; the mean step of a run
    machine_speed   FLOP/s and bandwidth of a machine, measured once and kept in the workspace
    machine_probe   the process that measures them (torch)
    communication   the part in which computation waits for collectives; ranks that are slower than their like (torch)
    profiler    traces of chosen steps, and the request for them in the run's directory
    devices     the GPUs of a node: utilization, power, temperature, errors (NVML); memory of a rank
    goodput     every rank-second of a run by its cause, goodput and badput: the records
    goodput_account   the rules: which cause each event gives to the time before it
"""
