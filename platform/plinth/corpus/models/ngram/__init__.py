"""Kneser-Ney n-gram models.

ngram       the trainer: a model of reference buckets, and its perplexity bands
estimate    counts of a capped sample of documents, and probabilities from them
ngram_file  a model as files, and as ARPA
"""
