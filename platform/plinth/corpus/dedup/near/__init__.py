"""Near duplicates: MinHash-LSH with every candidate verified.

    minhash     the stage; signatures of documents
    index       sorted band keys and text digests of every document; search for documents similar to a text
    candidates  documents that share a band key, grouped into connected components; shingle sets or signatures, copied
                from parts of documents to partitions of components
    linking     shingles of a text: their signatures and sets; similarities of pairs, computed once; comparison of pairs
                until the clusters are known
"""
