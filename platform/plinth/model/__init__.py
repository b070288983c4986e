"""The decoder that is trained: configuration, blocks, initial weights, loss, FLOPs, division, import and export.

Free of torch, so that recipes, plans and reports can read them:

    parameters      the configuration
    architecture    the description of an architecture, and where to find each
    llama/ olmo2/   the architectures: counts, published names, and the block
    flops           parameters and floating-point operations
    hugging_face    names and configurations in Hugging Face's layout

With torch:

    decoder         embedding, blocks, head: whole, or the part that one rank holds
    blocks          what blocks are made of: attention, feed-forward
    attention       rotary positions, document masks, kernels
    division        how parameters divide over ranks, and which part a rank holds
    initialisation  initial weights of any part of any parameter
    loss            cross-entropy without all logits
    layout          positions and outputs of a forward pass that is not plain training; keys and values of tokens seen
                    before
    distillation    cross-entropy mixed with the divergence from a teacher
    generation      tokens after prompts
    vocabulary      embedding and loss over a vocabulary that tensor ranks divide
    folder          model folders, read
    export          a checkpoint as a folder that other programs load
    export_forms    further forms of an export, which packages add

A new architecture is a folder like `olmo2/` and its name in `parameters.ArchitectureName`. Its block derives from
`blocks.Block`; each class with parameters of its own declares them (`DECLARED`), from which initial weights, tensor
parallelism and checkpoints follow. Pipelines and sequence parallelism need nothing of it.
"""
