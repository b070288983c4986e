"""Learned gates measured on labeled documents: recall, false positives and over-removal by slice.

    measured_gates      gates that can be measured: the annotator of each gate, its labeled documents (for illegal
                        content as well), its rules
    generate            labeled documents of several slices, generated from lists of words and sentences
    reviews             labels of reviewers, which are never changed or deleted; samples of removed documents for
                        reviewers; the share of correct removals for each reason
    removal_rates       removal rates of learned rules on every bucket, and the bound on trusted text
    evaluate            evaluation of a gate on labeled documents
    rates               gates to measure, and their bounds; recall, false positives and over-removal, with intervals

Nothing here depends on how a gate decides: each gate runs with its own annotators and the recipe's own rules.
"""
