"""Protection of evaluation data: keeps training text apart from held-out documents, benchmarks, probes and red-team
prompts.

    holdout          documents set aside before training, by keyed hash; they stay held out in later snapshots
    contamination    overlap of training documents with held-out documents, by word n-grams
    protected_index  all items as arrays: word hashes, n-grams with the items that contain them, word weights; the
                     training text to compare with, and the frequency of the items' n-grams and words in it; counts by
                     key over all parts, added up a bounded number at a time
    comparison       items found in documents: candidates by shared n-grams, each verified; status of every item:
                     contaminated, suspected, undecided, clean
    protected        items of a protected set as a part: `protected/NAME`; the stage
    parameters       settings
"""
