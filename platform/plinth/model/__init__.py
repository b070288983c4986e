"""The decoder that is trained: configuration, blocks, initial weights, loss, FLOPs, division, import and export.

Free of torch, so that recipes, plans and reports can read them:

    parameters      the configuration, and descriptions of architectures
    architectures   the architectures: counts, published names; parameters and floating-point operations
    hugging_face    names and configurations in Hugging Face's layout; forms of exports

With torch:

    decoder         embedding, blocks, head: whole, or the part that one rank holds; generation
    blocks          what blocks are made of: attention, feed-forward; the block of each architecture
    attention       rotary positions, document masks, kernels; layouts of tokens, keys and values seen before
    division        how parameters and the vocabulary divide over ranks, and which part a rank holds; initial
                    weights of any part of any parameter
    loss            cross-entropy and distillation without all logits
    folder          model folders, read
    export          a checkpoint as a folder that other programs load

A new architecture is a record in `architectures`, a block in `blocks` and its name in `parameters.ArchitectureName`.
Its block derives from `Block`; each class with parameters of its own declares them (`DECLARED`), from which initial
weights, tensor parallelism and checkpoints follow. Pipelines and sequence parallelism need nothing of it.
"""
