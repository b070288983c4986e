"""Deduplication over all buckets: exact, then near; one survivor of every cluster, whatever the order.

exact       equal but for case and white space, by SHA-256
minhash     near duplicates: signatures, candidates, verification; the stage itself
index       band keys and digests of all documents, sorted; near asks it
candidates  documents that share a band key, in components
verify      the components' pairs compared: payloads carries sets, linking walks pairs, facts remembers them
clusters    survivors (ranks) and the sidecar columns
shingles    sets and signatures of words or characters; plan chooses bands and rows
runs, tree  sorted columns read by range, and their merging; dense numbers the documents
shuffle     sorted Parquet parts, read by range

Then, where the recipe switches them on:

semantic    look-alikes in chosen buckets, by vectors (semantic_vectors) and cosines (semantic_pairs)
lines       repeated lines and paragraphs, boilerplate, as cuts; lines_units says what is compared
substring   repeated passages as cuts: substring_windows finds them, substring_verify compares words
spans       what the stages that cut share: sidecar, statistics, when too little is left
"""
