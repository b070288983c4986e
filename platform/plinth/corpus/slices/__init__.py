"""Measurement of learned gates on labeled documents: recall, false positives and over-removal by slice.

    measured_gates      gates that can be measured, each with its annotator, its rules, and its labeled documents (for
                        illegal content as well)
    generate            labeled documents of several slices, generated from lists of words and sentences
    reviews             labels of reviewers, which are never changed or deleted; samples of removed documents for
                        reviewers; the share of correct removals for each reason
    removal_rates       removal rates of learned rules on every bucket, and the bound on trusted text
    evaluate            evaluation of a gate on labeled documents
    rates               gates to measure, and their bounds; recall, false positives and over-removal, with intervals

The code does not depend on the method of a gate. Each gate runs with its annotators and with the recipe's rules.
"""
