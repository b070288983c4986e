"""Near duplicates: MinHash-LSH with every candidate verified.

    minhash     the stage; signatures of documents
    index       sorted band keys and text digests of every document; search for documents similar to a text
    components  connected components of documents that share band keys, in rounds of small tasks
    candidates  partitions of these components, and pieces of those that are too large for a partition
    crowds      pieces of documents that share a key and are too many for a piece
    payloads    shingle sets or signatures, carried to the tasks that compare them
    linking     signatures and shingle sets of texts; similarities of pairs, each computed once; comparison of pairs
                until the clusters are known
    large       clusters of components that were compared in several pieces
    sample      documents that are compared with candidates exactly, to measure accuracy
    accuracy    precision and recall of removal, on this sample
"""
