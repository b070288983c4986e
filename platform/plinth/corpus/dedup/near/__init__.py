"""Near duplicates: MinHash-LSH with every candidate verified.

    minhash     the stage; signatures of documents
    index       sorted band keys and text digests of every document; search for documents similar to a text
    candidates  documents that share a band key, grouped into connected components; copies of their shingle sets or
                signatures, sorted by component
    linking     signatures and shingle sets of texts; similarities of pairs, each computed once; comparison of pairs
                until the clusters are known
"""
