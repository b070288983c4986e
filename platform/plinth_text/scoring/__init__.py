"""Scores of texts under n-gram models; features of classifiers.

dense_features  lengths, shares of character classes, lines and repetition of a text, as features
features        words and pairs of words as rows of a hashed table, and scores of linear models
kneser_ney      log probabilities under a back-off n-gram model
"""
