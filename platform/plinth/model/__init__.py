"""The decoder that is trained: configuration, blocks, attention, initial weights, loss, FLOPs, export.

    attention       Attention itself: rotary positions, document masks, and the kernel that fits the device.
    blocks          The parts of a decoder block.
    decoder         A Llama-style decoder.
    flops           Parameters and floating-point operations of the Llama-style decoder that recipes describe.
    hugging_face    The model in Hugging Face's layout: `config.json` and `model.safetensors`.
    initialisation  Initial weights, of any part of any parameter, the same whoever asks.
    loss            Cross-entropy over the vocabulary without holding all logits.
    parameters      The shape of the decoder, and how it begins.
    presets         Shapes of models from 1M to 70B parameters, to start from.
"""
