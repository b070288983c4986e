"""Near duplicates: MinHash-LSH with every candidate verified.

bands             Bands and rows: published settings by name, or chosen for a threshold and a number of hashes.
candidates        Candidates: groups of documents that share the key of a band, put together into components.
index             The index: sorted band keys and text digests of every document, kept as runs that only ever merg
linking           Linking: the pairs of groups of documents, compared until the clusters are known.
minhash           Near duplicates: MinHash-LSH over shingles, every candidate verified, over all buckets.
payloads          What verification compares, carried from parts of documents to partitions of components.
query             Ask the index for documents near a text: for contamination, takedown and curiosity.
shingles          Shingles of a text, of words or of characters, as the recipe says: their signatures and their se
similarity_cache  Facts: similarities of pairs of documents that were computed once and hold for ever.
verify            Verification: the pairs of every component are compared and clusters made of those that pass.
"""
