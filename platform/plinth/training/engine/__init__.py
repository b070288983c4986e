"""DeepSpeed behind a few methods.

    engine              build the model and its optimizer, train one step, evaluate, walk through whole parameters
    pipeline            the engine of one stage, one-forward-one-backward; `open_engine` picks a run's engine
    skipped_update      keeps the optimizer from applying a bad update, in any ZeRO stage, without a wait
    deepspeed_settings  the configuration that DeepSpeed gets
    deepspeed_engine    DeepSpeed's engine where its choices would round a gradient or make the host wait
    device_gradients    norm, clipping and finiteness of a step's gradient, on the device
    master_weights      FP32 masters and gradients of a BF16 model without ZeRO
    precision           its dtype on a device; what a device cannot train with
    ranks               join the process group, seed, leave
    float8              FP8 products of the blocks' linear layers, by torchao
    batch_expansion     stored rows to what the model takes, on the device
    parameter_groups    learning rate and weight decay by parameter
    muon                hidden matrices by Muon, all else by AdamW
    matrix_division     which rank holds which part of a matrix, and how the parts come together
    weight_average      exponential mean of the weights, divided and saved as the optimizer's state is
    schedule            learning rate as a function of tokens
    layer_statistics    gradient norm and activations by layer, measured on the device
"""
