"""One model over several devices: process groups, collectives and schedules.

    topology               rank -> coordinates (data, pipeline, sequence, tensor), the process groups; dtype, time and
                           overlap of the reduction of gradients, by ZeRO stage
    divided_decoder        the part of a decoder that a rank trains: collectives, groups, blocks, initial weights
                           under ZeRO-3

The division of each block of a model is declared next to the block: `plinth.model.division`.
`plinth.training.engine.pipeline.open_engine` selects the engine for a run's `parallel:` block.
"""
