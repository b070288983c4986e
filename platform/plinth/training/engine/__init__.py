"""DeepSpeed behind a few methods.

    engine              build the model and its optimizer, train one step, evaluate, walk through whole parameters
    pipeline            the engine of one stage, one-forward-one-backward; `open_engine` picks a run's engine
    skipped_update      keeps the optimizer from applying a bad update, in any ZeRO stage, without a wait
    deepspeed_engine    DeepSpeed's engine where its choices would round a gradient or make the host wait
    device_gradients    norm, clipping and finiteness of a step's gradient, on the device
    weight_copies       FP32 masters without ZeRO, and the exponential mean of the weights
    precision           its dtype on a device; what a device cannot train with
    ranks               join the process group, seed, leave
    batch_expansion     stored rows to what the model takes, on the device
    parameter_groups    learning rate as a function of tokens; learning rate and weight decay by parameter
    muon                hidden matrices by Muon, all else by AdamW
    layer_statistics    gradient norm and activations by layer, measured on the device
"""
