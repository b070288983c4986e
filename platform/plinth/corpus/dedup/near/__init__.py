"""Near duplicates: MinHash-LSH with every candidate verified.

minhash           the stage; signatures of documents
bands             bands and rows: published settings by name, or chosen for a threshold
shingles          shingles of a text: their signatures and sets
index             sorted band keys and text digests of every document; documents near a text, from them
candidates        documents that share a band key, in components
payloads          shingle sets or signatures, carried from parts of documents to partitions of components
linking           kernels: pairs compared until the clusters are known
similarity_cache  similarities of pairs, computed once
"""
