"""Near duplicates: MinHash-LSH with every candidate verified.

    minhash     the stage; signatures of documents
    index       sorted band keys and text digests of every document; search for documents similar to a text
    components  connected components of documents that share band keys, in rounds of small tasks
    candidates  partitions of these components; copies of their shingle sets or signatures, sorted by component
    linking     signatures and shingle sets of texts; similarities of pairs, each computed once; comparison of pairs
                until the clusters are known
    sample      documents that are compared with candidates exactly, to measure accuracy
    accuracy    precision and recall of removal, on this sample
"""
