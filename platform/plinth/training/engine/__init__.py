"""DeepSpeed behind a few methods.

    engine              build the model and its optimizer, train one step, evaluate, walk through whole parameters
    pipeline            the engine of one stage, one-forward-one-backward; `open_engine` picks a run's engine
    skipped_update      keeps the optimizer from applying a bad update, in any ZeRO stage, without a wait
    deepspeed_engine    DeepSpeed's engine where its choices would round a gradient or make the host wait
    device_measurements norm, clipping and finiteness of a step's gradient; gradient norm and activations by layer
    weights             the initial weights, read from files; FP32 masters without ZeRO; the exponential mean
    ranks               join the process group, seed, leave; the precision of a device, what it cannot train with
    batches             one rank reads the batches of a replica; stored rows to what the model takes, on the device
    optimization        learning rate as a function of tokens; learning rate and weight decay by parameter; Muon
"""
