"""A text back to what the model read: verbatim spans, their documents, and the steps and checkpoints that saw them.

    tracer       a text or tokens -> spans with counts -> documents, shards, runs
    completions  what the latest checkpoint wrote after text of risk, traced
    documents    places in a stream -> documents, counted and listed
    runs         tokens of a stream -> steps and checkpoints of every run, by the arithmetic of its order

Does not belong here: the search itself (tokens.trace_index), and one document by its id (provenance.explain).
"""
