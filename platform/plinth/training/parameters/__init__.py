"""Parameters of a run as a recipe sets them, one section per part of training.

    run              the whole, with cross-checks of sections; small sections: checkpoints, validation, telemetry, sinks
    optimizers       learning rate; AdamW, Muon, and optimizers of installed packages; changes of rotary positions
    parallel         the `parallel:` block, with checks; settings of DeepSpeed
    initial          initial weights
    guard            actions and bounds of the guard's rules; stopping rules

The control plane imports all of it: no torch, no slow imports.
"""
