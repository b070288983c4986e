"""Deduplication over all buckets. Every cluster keeps one survivor, which does not depend on the order of parts.

Stages; each reads the survivors of the stage before it:

    exact       texts equal except for case and white space, by SHA-256
    near/       near duplicates: MinHash-LSH with every candidate verified
    semantic    semantic duplicates in chosen buckets, by vectors (`vectors`) and cosine similarity
    lines       repeated lines and paragraphs, boilerplate, as cuts
    substring   repeated passages, as cuts

Shared by the stages:

    parameters        settings of the stages; bands and rows: published settings by name, or chosen for a threshold
    clusters          clusters from groups of documents, and their sidecar columns; the survivor of a cluster by the
                      recipe's rule
    edits             sidecar, statistics and cuts of the stages that cut spans; windows of n words that occurred
                      earlier, found by anchors and then by 128-bit keys
    sorted_runs       tables of 64-bit columns sorted by a key, read by range; ranges of keys, rows of a part, 16-byte
                      values
    run_tree          a tree of sorted runs with one leaf per part of documents, merged to a bounded number
"""
