"""What is measured of a checkpoint: bits per byte of held-out text, probes, tasks, comparison.

    parameters  parameters of the evaluation, its probes and its tasks, as a recipe sets them
    measurement the records of one kind of evidence and of a gate, and the catalogues of both
    slices/     the asset: held-out documents and protected items; bits by slice, token position and byte span
    engine/     a checkpoint in a child process: likelihoods, bits of documents, generation
    serving     what it costs to serve a checkpoint: worked out for devices, measured on this machine
    probes/     small sets of items, scored by likelihood, in the loop and after it
    pii         personal data left in training text; the detector; written text as documents for annotators
    tasks/      tasks of lm-evaluation-harness, from local files and without a network
    statistics/ every interval, test and correction of Plinth
    comparison/ two models side by side: paired differences, what differs between them, why

Bits per byte of a document are the total -log2 p of its tokens over its UTF-8 bytes, so that models with
different tokenizers, and compressors without any, can be compared on the same text.

An evaluator that fails raises a named error; no score stands for a failure.
"""
