"""Scores of texts under n-gram models; features of classifiers.

    features        hashed words and pairs of words with scores of linear models; lengths, shares and repetition
    language_model  texts as sentences of tokens, and their log probabilities under a back-off n-gram model
"""
