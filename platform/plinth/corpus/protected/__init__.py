"""Training text held against sets that it must not hold: benchmarks, probes, red-team prompts.

sets     items of a set as a part: `protected/NAME`
index    all items as arrays: word hashes, n-grams with the items that hold them, weights of words
match    kernels: candidates, the best stretch of a document, the longest run
run      the stage: a sidecar per document, and what was found of every item
"""
