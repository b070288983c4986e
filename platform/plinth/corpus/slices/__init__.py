"""Learned gates measured on documents whose truth is known: recall, false positives and over-removal by slice.

    parameters          gates to measure, and their bounds
    measured_gates      gates that can be measured: the annotator behind each, its labelled documents, the rules by
                        which it removes
    generate            labelled documents of several slices, from the words of `vocabulary`
    illegal             the same for the gate of illegal content, whose lists are hashes and phrases
    removed_samples     samples of removed documents for reviewers; the share of each reason that was right
    review_labels       labels of reviewers, only ever added to, and the documents that they labelled
    removal_rates       how often they fire on every bucket, and the bound on trusted text
    evaluate            run a gate over labelled documents
    rates               recall, false positives and over-removal, with intervals

Nothing here depends on how a gate judges: each runs through its own annotators and the recipe's own rules.
"""
