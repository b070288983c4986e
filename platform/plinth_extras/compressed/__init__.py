"""Smaller forms of a trained model, written from a folder in Hugging Face's layout and read back to be measured.

    catalog          the forms as members of `plinth.model_forms`
    export           a form on its way out: written, read back, measured on held-out text, judged
    forms            the forms by name; from a folder to a form, and back to a folder that the evaluation loads
    gguf_file        GGUF for llama.cpp: tensors quantised by `gguf`, proved to be what the quantiser gave
    gguf_metadata    the keys that llama.cpp reads, and the order in which it keeps rotary pairs
    gguf_vocabulary  the tokenizer as GGUF has it
    torchao_file     int8 and int4 weights as `torchao` makes them, in safetensors that transformers and vLLM load
    pruned_file      the smallest weights of every matrix set to zero

A form that is read back has the numbers of the file, never those it was made of. How much it loses is measured by
the evaluation (`plinth_registry.exports.sealed`), not here.
"""
