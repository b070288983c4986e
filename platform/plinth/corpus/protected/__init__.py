"""Protection of evaluation data: removes held-out documents, benchmarks, probes and red-team prompts from training.

    holdout          documents set aside before training, by keyed hash; they stay held out in later snapshots
    contamination    overlap of training documents with held-out documents, by word n-grams
    protected_index  all protected items as arrays: word hashes, n-grams with the items that contain them, word weights;
                     the frequency of the items' n-grams and words in the training text; sums of counts over all parts
    comparison       search for items in documents, by shared n-grams, with verification of each match; status of every
                     item: contaminated, suspected, undecided, clean
    protected        reading of the items of a protected set (`protected/NAME`); the stage that compares documents
    parameters       settings of the stages
"""
