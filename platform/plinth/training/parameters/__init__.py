"""What a recipe says of a run: a section for each part of it.

    run              the whole, with what only two sections together can refuse; its small sections: checkpoints,
                     validation, telemetry, sinks
    optimizers       learning rate; AdamW, Muon, and those of installed packages, by name; rotary positions that change
    parallel         the `parallel:` block, and the reasons for which one cannot run; settings of DeepSpeed
    initial          weights to begin from
    guard            what each rule of the guard does, and its bounds; rules that end a run

The control plane imports all of it: no torch, nothing heavy.
"""
