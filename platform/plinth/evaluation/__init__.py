"""Evaluation of a checkpoint: bits per byte of held-out text, probes, tasks, comparison.

    parameters  parameters of the evaluation, its probes and its tasks, as a recipe sets them
    measurement record types of measurements and gates, and their catalogs
    slices/     bits per byte of held-out documents and protected items, by slice, token position and byte span
    engine/     inference with a checkpoint in a child process: likelihoods, bits of documents, generation
    serving     serving cost of a checkpoint, estimated for named devices and measured on this machine
    probes/     small sets of items scored by likelihood, during training and after
    pii         personal data left in training text, and the detector for it
    tasks/      tasks of lm-evaluation-harness, from local files, offline
    statistics/ every interval, test and correction of Plinth
    comparison/ comparison of two models: paired differences, changes, explanations

The bits per byte of a document are the total -log2 p of its tokens divided by its number of UTF-8 bytes. The measure
is comparable between models with different tokenizers, and with compressors that have no tokenizer.

An evaluator that fails raises a specific error class; a failure never yields a score.
"""
