"""The timeline of a run, `events.jsonl`.

    timeline    every event and its fields; append, read, follow, one value per step; the main numbers of a run: final
                loss, median step time, median tokens per second
    step_clock  the time of a step by part, by the host's clock or by the device's events; the mean step of a run
    machine_speed   FLOP/s and bandwidth of a machine, measured once and kept in the workspace
    machine_probe   the process that measures them (torch)
    communication   time in which computation waits for collectives; ranks slower than ranks with the same work (torch)
    profiler    traces of chosen steps, and the trace requests in the run's directory
    devices     the GPUs of a node: utilization, power, temperature, errors (NVML); memory of a rank
    goodput     records that assign every rank-second of a run to a cause: goodput or a kind of badput
    goodput_account   rules that decide which cause each event gives to the time before it
"""
