"""The embedding back-check of chosen buckets.

pairs     Pairs of vectors whose cosine reaches a threshold: SimHash nominates, whole numbers decide.
semantic  Look-alikes that share words and not shingles: the embedding back-check of chosen, high-risk buckets.
vectors   A vector for every document that is compared: hashed TF-IDF learned here, or the user's own.
"""
