"""Learned gates measured on documents whose truth is known: recall, false positives and over-removal by slice.

    gates       which gates there are, and what generates documents for each
    generate    labelled documents of several slices, from the words of `vocabulary`
    illegal     the same for the gate of illegal content, whose lists are hashes and phrases
    reviews     what reviewers said of documents of the corpus
    reviewed    those documents, fetched
    rule        what a gate removes, by the recipe
    evaluate    run a gate over all of them
    rates       what came of it, by slice

Nothing here knows how a gate judges: every one runs through its own annotators and the recipe's own rules.
"""
