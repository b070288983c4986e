"""Smaller forms of a trained model, written from a folder in Hugging Face's layout and read back to be measured.

    export           a form on its way out, written, read back, measured and judged; the members of
                     `plinth.model_forms`
    forms            the forms by name, there and back; integers as `torchao` makes them; the smallest weights at zero
    gguf_file        GGUF for llama.cpp: tensors quantised by `gguf`, keys, the tokenizer as GGUF has it

A form that is read back has the numbers of the file, never those it was made of. How much it loses is measured by
the evaluation (`plinth_registry.exports.sealed`), not here.
"""
