"""Deduplication over all buckets; every cluster keeps one survivor, whatever the order of parts.

Stages, each reading the survivors of the one before:

    exact       texts equal but for case and white space, by SHA-256
    near/       near duplicates: MinHash-LSH, every candidate verified
    semantic    look-alikes in chosen buckets, by vectors (`vectors`) and cosines
    lines       repeated lines and paragraphs, boilerplate, as cuts
    substring   repeated passages, as cuts

Shared by them:

    parameters        settings of the stages; bands and rows: published settings by name, or chosen for a threshold
    clusters          groups of documents to clusters, survivors and sidecar columns; the survivor of a cluster by the
                      recipe's rule
    edits             sidecar, statistics and cuts of the stages that cut spans; windows of n words that occurred
                      before: by anchors, then by 128-bit keys
    sorted_runs       tables of 64-bit columns sorted by a key, read by range; ranges of keys, rows of a part, 16-byte
                      values
    run_tree          a tree of runs, one leaf per part of documents, merged to a bounded number
"""
