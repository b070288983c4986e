"""DeepSpeed behind a few methods.

    engine              build the model and its optimizer, train one step, evaluate, walk through whole parameters
    deepspeed_settings  the configuration that DeepSpeed gets
    ranks               join the process group, seed, leave
    batch_expansion     stored rows to what the model takes, on the device
    parameter_groups    learning rate and weight decay by parameter
    schedule            learning rate as a function of tokens
    layer_statistics    gradient norm and activations by layer, measured on the device
    parameters          optimizer and learning rate, as a recipe sets them
"""
