"""Inference with a checkpoint in a child process: likelihoods, bits of whole documents, generation.

    client       `ModelEngine`: client of a model in a child process, and that process (no torch)
    records      requests and answers as records, and as files exchanged by the two processes (no torch)
    batches      texts as token streams, and streams as batches determined by their content (no torch)
    inference    -log2 p of every token, and generation, for any model with the interface of `Decoder` (torch)
    checkpoint   a folder's model, tokenizer and limits (torch)
    __main__     the child process (torch)

The training loop scores with `batches` and `inference` on its live model: equal batches, hence equal bits on equal
weights, device and precision.
"""
