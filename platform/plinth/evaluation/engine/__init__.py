"""A checkpoint at work in a child process: likelihoods, bits of whole documents, generation.

    client       `ModelEngine`: calls to a model in a child process, and that process as the caller sees it (no torch)
    records      requests and answers, as records and as files between the two processes (no torch)
    batches      texts as token streams, and streams as batches that nothing but their content decides (no torch)
    inference    -log2 p of every token, and text after prompts, over any model that is called like a `Decoder`
                 (torch)
    checkpoint   a folder's model, tokenizer and limits (torch)
    __main__     the child process (torch)

The training loop scores with `batches` and `inference` over its live model: the same batches, hence the same bits as
the child gives on the same weights, device and precision.
"""
