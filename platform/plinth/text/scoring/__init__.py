"""Scores of texts under n-gram models; features of classifiers.

    dense_features  What a text looks like, as a few numbers: lengths, shares of character classes, lines, repetition.
    features        Words and pairs of words as rows of a hashed table: the features of linear models, and their score
    kneser_ney      Score tokens with a back-off n-gram model held in flat tables.
"""
