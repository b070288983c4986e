"""What a recipe says of a run: a section for each part of it.

    run              the whole, with what only two sections together can refuse
    engine           optimizer and learning rate
    optimizers       AdamW, Muon, and those of installed packages, by name
    deepspeed_block  what a recipe may set of DeepSpeed, and what the engine owns
    parallel         the `parallel:` block, and the reasons for which one cannot run
    rotary_schedule  rotary positions that change within a run
    initial          weights to begin from
    guard, stopping  what each rule does, and its bounds
    validation       how often, how much text, and what probes may cost
    checkpoints      interval, retention, upload
    telemetry        how often layers are measured

The control plane imports all of it: no torch, nothing heavy.
"""
