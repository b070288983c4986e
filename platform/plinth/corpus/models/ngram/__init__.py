"""Kneser-Ney n-gram models.

count       Counts for an n-gram model: vocabulary and n-grams of a capped sample of documents.
estimate    Interpolated modified Kneser–Ney (Chen and Goodman 1998), computed as Heafield et al. (2013) do.
ngram       A modified Kneser–Ney n-gram model of reference buckets, and the perplexity bands that it puts on othe
ngram_file  An n-gram model as files (JSON and plain arrays), and as ARPA, which other tools read.
"""
