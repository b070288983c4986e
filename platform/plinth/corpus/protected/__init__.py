"""Training text kept apart from text that it must not hold: held-out documents, benchmarks, probes, red-team prompts.

holdout          documents set aside before training, by keyed hash
contamination    overlap of training documents with the held-out ones, by word n-grams
match_cuts       GPT-3's rule: the match and 200 characters around it are cut, or the document is dropped
sets             items of a protected set as a part: `protected/NAME`
protected_index  all items as arrays: word hashes, n-grams with the items that hold them, weights of words
match            kernels: candidates, the best stretch of a document, the longest run
protected        the stage: a sidecar per document, and the documents found for every item
parameters, heldout_parameters   settings
"""
