"""A text back to what the model read: verbatim spans, their documents, and the steps and checkpoints that saw them.

    trace_index  the stage of the pipeline; hashes of every 17th 16-gram of a range, sorted
    matches      tokens of a text -> every place in the shards that has 32 or more of them -> maximal spans, with counts
    tracer       a text or tokens -> spans -> documents, shards, steps and checkpoints of runs
    command      `plinth corpus trace`

The index takes half a byte per token. A query looks up all of its own 16-grams, so the anchors may lie at fixed
distances: the size does not depend on the text, and what is repeated a million times is found a million times.
Does not belong here: one document by its id (`plinth.provenance.explain`).
"""
