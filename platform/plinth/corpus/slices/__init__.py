"""Learned gates measured on documents whose truth is known: recall, false positives and over-removal by slice.

    measured_gates      gates that can be measured: the annotator behind each, its labeled documents (for illegal
                        content too), its rules
    generate            labeled documents of several slices, from the words of `vocabulary`
    reviews             labels of reviewers, only ever added to; samples of removed documents for them; the share of
                        each reason that was right
    removal_rates       how often they fire on every bucket, and the bound on trusted text
    evaluate            run a gate over labeled documents
    rates               gates to measure, and their bounds; recall, false positives and over-removal, with intervals

Nothing here depends on how a gate judges: each runs through its own annotators and the recipe's own rules.
"""
