"""Decoder: configuration, blocks, initial weights, loss, FLOPs, division, import and export.

Without torch, for recipes, plans and reports:

    parameters      the configuration, and descriptions of architectures
    architectures   the architectures: published names, parameter counts, floating-point operations
    hugging_face    names and configurations in Hugging Face's layout; forms of exports

With torch:

    decoder         embedding, blocks, head: whole, or one rank's part; generation
    blocks          attention, feed-forward; the block of each architecture
    attention       rotary positions, document masks, kernels; layouts of tokens; key/value cache
    division        division of parameters and the vocabulary over ranks; initial weights of any part of any
                    parameter
    loss            cross-entropy and distillation, without storing all logits
    folder          reading of model folders
    export          export of a checkpoint as a folder for other programs

A new architecture is a record in `architectures`, a block in `blocks` and its name in `parameters.ArchitectureName`.
Its block derives from `Block`; each class with parameters of its own declares them (`DECLARED`), from which initial
weights, tensor parallelism and checkpoints follow. Pipelines and sequence parallelism need no extra code.
"""
