"""Kneser-Ney n-gram models.

ngram       the trainer: a model of reference buckets, and its perplexity bands
count       vocabulary and n-grams of a capped sample of documents
estimate    interpolated modified Kneser–Ney
ngram_file  a model as files, and as ARPA
"""
