"""Near duplicates: MinHash-LSH with every candidate verified.

    minhash     the stage; signatures of documents
    index       sorted band keys and text digests of every document; documents near a text, from them
    candidates  documents that share a band key, in components; shingle sets or signatures, carried from parts of
                documents to partitions of components
    linking     shingles of a text: their signatures and sets; similarities of pairs, computed once; pairs compared
                until the clusters are known
"""
