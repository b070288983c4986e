"""Learned gates measured on documents whose truth is known: recall, false positives and over-removal by slice.

    parameters          gates to measure, and their bounds
    measured_gates      the gates that can be measured, and the generator of each
    generate            labelled documents of several slices, from the words of `vocabulary`
    illegal             the same for the gate of illegal content, whose lists are hashes and phrases
    removed_samples     samples of removed documents for reviewers; the share of each reason that was right
    review_labels       labels of reviewers, as files
    reviewed_documents  the documents that reviewers labelled
    learned_rules       rules of policies that drop by what a model learnt; buckets trusted as reference
    removal_rates       how often they fire on every bucket, and the bound on trusted text
    held_apart          labelled text that measures a model, apart from what the model learns from
    rule                the rules by which a gate removes, from the recipe
    evaluate            run a gate over labelled documents
    rates               recall, false positives and over-removal, with intervals

Nothing here depends on how a gate judges: each runs through its own annotators and the recipe's own rules.
"""
