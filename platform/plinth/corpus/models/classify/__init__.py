"""Classifiers and taggers: hashed words, linear models, trees, calibration.

linear      the linear stage: logistic regression on hashed words and pairs of words
trees       the second stage: gradient-boosted trees over a few numbers
probabilities  from margins to probabilities; ranking (AUC) and calibration of them
"""
