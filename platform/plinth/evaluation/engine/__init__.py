"""Inference with a checkpoint in a child process: likelihoods, bits of whole documents, generation.

    client       `ModelEngine`: client of a model in a child process, and that process (no torch)
    records      requests and answers as records, and as files exchanged by the two processes (no torch)
    batches      token streams of texts, and batches of streams; batches depend on content only (no torch)
    inference    -log2 p of every token, and generation, for any model with the interface of `Decoder` (torch)
    checkpoint   model, tokenizer and limits loaded from a folder (torch)
    __main__     the child process (torch)

The training loop scores its live model with `batches` and `inference`. It uses the same batches as the child process;
the bits are therefore equal if weights, device and precision are equal.
"""
