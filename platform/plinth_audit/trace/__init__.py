"""A text back to what the model read: verbatim spans, their documents, and the steps and checkpoints that saw them.

    anchors      every 17th token's 16-gram as a sorted hash, so that any 32 tokens in a row hold one whole
    ranges       tokens of whole documents that are indexed apart, with an identity that growth leaves alone
    trace_index  anchors of every range                                    asset `{bucket}/trace_index`
    stage        the stage of the pipeline that makes them
    matches      tokens of a text -> every place in the shards that has 32 or more of them, compared token by token
    spans        matches -> maximal spans, with exact counts
    tracer       a text or tokens -> spans with counts -> documents, shards, runs
    documents    places in a stream -> documents, counted and listed
    runs         tokens of a stream -> steps and checkpoints of every run, by the arithmetic of its order
    completions  what the latest checkpoint wrote after text at risk, traced
    command      `plinth corpus trace`

The index takes half a byte per token. A query looks up all of its own 16-grams, so the anchors may lie at fixed
distances: the size does not depend on the text, and what is repeated a million times is found a million times.
Does not belong here: one document by its id (`plinth.provenance.explain`).
"""
