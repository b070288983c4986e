"""Near duplicates: MinHash-LSH with every candidate verified.

minhash           the stage; signatures of documents
bands             bands and rows: published settings by name, or chosen for a threshold
shingles          shingles of a text, of words or characters: their signatures and sets
index             sorted band keys and text digests of every document
candidates        documents that share a band key, in components
verify            the pairs of every component compared; clusters of those that pass
payloads          shingle sets or signatures, carried from parts of documents to partitions of components
linking           kernels: pairs compared until the clusters are known
similarity_cache  similarities of pairs, computed once
query             documents near a text, from the index
"""
