"""Training engine: a small interface to DeepSpeed.

    engine              build the model and its optimizer, train one step, evaluate, iterate over whole parameters
    pipeline            engine of one pipeline stage, one-forward-one-backward; `open_engine` picks a run's engine
    skipped_update      skipping of a bad update, in any ZeRO stage, without a host wait
    deepspeed_engine    changes to DeepSpeed's engine that avoid rounding of gradients and host waits
    device_measurements norm, clipping and finiteness of a step's gradient; gradient norm and activations by layer
    expert_balance      load of experts: biases for balance, and health by layer and bucket
    weights             initial weights from files; FP32 master weights without ZeRO; exponential mean of the weights
    ranks               join and leave the process group, seed; precisions and kernels that a device supports
    batches             batches read once per replica, and expanded to model input on the device
    optimization        learning rate as a function of tokens; learning rate and weight decay by parameter; Muon
"""
