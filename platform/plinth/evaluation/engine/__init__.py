"""A checkpoint at work in a child process: likelihoods, bits of whole documents, generation.

    client       `ModelEngine`: calls to a model in a child process (no torch)
    child        that process: lines and files, its end, and the idle one that the next engine takes (no torch)
    records      requests and answers (no torch)
    exchange     requests and answers as files between the two processes (no torch)
    encode       texts as token streams, and where in the text a token ends (no torch)
    batches      streams as batches that nothing but their content decides (no torch)
    likelihood   batches to -log2 p of every token, over any model that is called like a `Decoder` (torch)
    generation   text after prompts (torch)
    checkpoint   a folder's model, tokenizer and limits (torch)
    __main__     the child process (torch)

The training loop scores with `encode`, `batches` and `likelihood` over its live model: the same batches, hence the same
bits as the child gives on the same weights, device and precision.
"""
