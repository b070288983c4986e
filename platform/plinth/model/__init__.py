"""Decoder: configuration, blocks, initial weights, loss, FLOPs, division over ranks, import and export.

These modules do not import torch, so recipes, plans and reports can use them:

    parameters      the configuration, and descriptions of architectures
    architectures   the architectures: published names, parameter counts, floating-point operations
    hugging_face    names and configurations in Hugging Face's layout; export formats
    layer_types     sliding windows and rotary positions of layers in Hugging Face's configurations
    sparsity        mixtures of experts: configuration, names in model files
    packed          packed projections in model files
    interchange     weights in the checkpoints of other trainers (its writer imports torch)

These modules import torch:

    decoder         embedding, blocks and head of the whole model or of one rank's part; generation
    blocks          attention, feed-forward; the block of each architecture
    experts         router, experts and balancing losses
    attention       rotary positions, document masks, kernels; layouts of tokens; key/value cache
    division        division of parameters and the vocabulary over ranks; initial weights of any part of any
                    parameter
    loss            cross-entropy and distillation, without storing all logits
    folder          reading of model folders
    export          export of a checkpoint as a folder for other programs

To add an architecture, add a record to `architectures`, a block to `blocks` and its name to
`parameters.ArchitectureName`. The block class derives from `Block`. Classes with parameters declare them in `DECLARED`;
initial weights, tensor parallelism and checkpoints follow from these declarations. Pipelines and sequence parallelism
need no extra code for a new architecture.
"""
