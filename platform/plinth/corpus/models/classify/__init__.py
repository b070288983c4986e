"""Classifiers and taggers: hashed words, linear models, trees, calibration.

artefact    A trained classifier as files: `model.json`, `table.npy`, and for the second stage `nodes.npy`, `start
calibrate   From margins to probabilities: Platt's logistic curve, or a monotone staircase (isotonic regression).
classifier  Two kinds of text told apart: reference from random, or good from bad as a labelled list says; in two
learning    What classifier and tagger share: parameters, the checks before training, and training as one cached i
linear      Train a linear model on hashed words and pairs of words: logistic regression, one label against the re
measures    How good probabilities are: ranking (AUC, average precision) and honesty (Brier score, calibration err
tagger      Several kinds of text told apart: domain or function, one label against the rest, for the mixture.
trees       Gradient-boosted trees over a few numbers: fitted by scikit-learn, kept as arrays, evaluated by a kern
"""
