"""Parameters of a run as a recipe sets them, one section per part of training.

    run              all sections and their cross-checks; small sections: checkpoints, validation, telemetry, sinks
    optimizers       learning rate; AdamW, Muon, and optimizers of installed packages; changes of rotary positions
    parallel         the `parallel:` block, with checks; settings of DeepSpeed
    initial          initial weights
    trainer          your own trainer in place of Plinth's loop
    guard            actions and bounds of the guard's rules; stopping rules

The control plane imports all these modules, so they must not import torch or other slow packages.
"""
