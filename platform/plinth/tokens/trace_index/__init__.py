"""Verbatim spans of a text in the shards: an index of half a byte per token, and exact matches by it.

    anchors      every 17th token's 16-gram as a sorted hash, so that any 32 tokens in a row hold one whole
    ranges       tokens of whole documents that are indexed apart, with an identity that growth leaves alone
    trace_index  the stage: anchors of every range                                    asset `{bucket}/trace_index`
    matches      tokens of a text -> every place in the shards that has 32 or more of them, compared token by token
    spans        matches -> maximal spans, with exact counts

A query looks up all of its own 16-grams, so the anchors may lie at fixed distances: the size does not depend on the
text, and what is repeated a million times is found a million times. Does not belong here: the documents and training
steps of a span (provenance.trace).
"""
