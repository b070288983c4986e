"""Kneser-Ney n-gram models.

ngram       the trainer: a model of reference buckets, and its perplexity bands
ngram_file  a model as files, and as ARPA
"""
