"""One model over several devices: process groups, collectives and schedules.

    gradient_path          dtype, moment and overlap of the reduction of gradients, by ZeRO stage
    topology               rank -> place (data, pipeline, sequence, tensor), and the process groups
    collectives            collectives that gradients flow through
    groups                 tensor and sequence ranks that exchange over process groups
    divided_decoder        the part of the decoder that a rank trains; whole parameters
    block_wrapping         compilation and activation recomputation of blocks
    zero3_initialisation   initial weights under ZeRO-3, each rank its own range
    stage_exchange         what stages send each other

How each block of a model divides is declared beside the block: `plinth.model.division`.
`plinth.training.engine.pipeline.open_engine` picks the engine that a run's `parallel:` block asks for.
"""
