"""Classifiers and taggers: hashed words, linear models, trees, calibration.

classifier  two kinds of text: reference from random, or good from bad by a labelled list; two stages
tagger      several kinds of text: domain or function, one label against the rest
learning    shared by both: parameters, checks before training, training as one cached item
linear      the linear stage: logistic regression on hashed words and pairs of words
trees       the second stage: gradient-boosted trees over a few numbers
probabilities  from margins to probabilities; ranking (AUC) and calibration of them
artefact    a trained classifier as files
"""
