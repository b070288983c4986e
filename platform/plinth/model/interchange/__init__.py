"""Exchange of model weights with other trainers, as folders of `torch.distributed.checkpoint` (DCP).

    pickled     pickles read as inert records: nothing that a pickle names is imported or called
    dcp         tensors of a DCP folder, validated, read from mapped files
    layouts     names and shapes of the same weights in other trainers: Hugging Face, Plinth, OLMo-core, Megatron
    conversion  from a DCP folder to safetensors
    torch_writer  from a Hugging Face folder to DCP; imports torch

Optimizer states of other trainers do not belong here.
"""
