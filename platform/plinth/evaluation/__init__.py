"""Evaluation of a checkpoint: bits per byte of held-out text, probes, tasks, comparison.

    parameters  parameters of the evaluation, its probes and its tasks, as a recipe sets them
    measurement the records of one kind of evidence and of a gate, and the catalogs of both
    slices/     held-out documents and protected items: bits per byte by slice, token position and byte span
    engine/     a checkpoint in a child process: likelihoods, bits of documents, generation
    serving     serving cost of a checkpoint: estimated for devices, measured on this machine
    probes/     small sets of items scored by likelihood, during training and after
    pii         personal data left in training text; its detector
    tasks/      tasks of lm-evaluation-harness, from local files, offline
    statistics/ every interval, test and correction of Plinth
    comparison/ comparison of two models: paired differences, changes, explanations

Bits per byte of a document is the total -log2 p of its tokens over its UTF-8 bytes, so that models with
different tokenizers, and compressors without any, are comparable on the same text.

An evaluator that fails raises a named error; a failure never yields a score.
"""
