"""Deduplication over all buckets: exact, then near; one survivor of every cluster, whatever the order.

exact       equal but for case and white space, by SHA-256
minhash     near duplicates: signatures, candidates, verification; the stage itself
candidates  documents that share a band key
verify      true Jaccard similarity of every candidate pair; union-find
clusters    roots, survivors, and the sidecar columns
shuffle     sorted parts and reading one range of keys from many of them

Then, where the recipe switches them on:

semantic    look-alikes in chosen buckets, by vectors (semantic_vectors) and cosines (semantic_pairs)
lines       repeated lines and paragraphs, boilerplate, as cuts; lines_units says what is compared
substring   repeated passages as cuts: substring_windows finds them, substring_verify compares words
spans       what the stages that cut share: sidecar, statistics, when too little is left
"""
