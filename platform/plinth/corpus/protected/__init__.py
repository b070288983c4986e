"""Training text kept apart from text that it must not hold: held-out documents, benchmarks, probes, red-team prompts.

    holdout          documents set aside before training, by keyed hash; once set aside, always
    contamination    overlap of training documents with the held-out ones, by word n-grams
    protected_index  all items as arrays: word hashes, n-grams with the items that hold them, weights of words; the text
                     that items are compared with, and how common their n-grams and words are in it; counts by key over
                     all parts, added up a bounded number at a time
    comparison       items found in documents: candidates by shared n-grams, each verified; every item: contaminated,
                     suspected, undecided, clean
    protected        items of a protected set as a part: `protected/NAME`; the stage
    parameters       settings
"""
