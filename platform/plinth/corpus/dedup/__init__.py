"""Deduplication over all buckets. Every cluster keeps one survivor, which does not depend on the order of parts.

Stages; each reads the survivors of the stage before it:

    exact       texts equal except for case and white space, by SHA-256
    near/       near duplicates, by MinHash-LSH; every candidate pair is verified
    semantic    semantic duplicates in chosen buckets, by the cosine similarity of vectors (`vectors`)
    lines       cuts of repeated lines, repeated paragraphs and boilerplate
    substring   cuts of repeated passages

Shared by the stages:

    parameters        settings of the stages; numbers of bands and rows, published or chosen for a threshold
    clusters          clusters from groups of documents, and their sidecar columns; selects the survivor of a cluster by
                      the recipe's rule
    edits             sidecar, statistics and cuts of the stages that cut spans; windows of n words that occurred
                      earlier, found by anchors and then by 128-bit keys
    sorted_runs       tables of 64-bit columns, sorted by a key and read by key range or by rows of a part; 16-byte
                      values
    run_tree          a tree of sorted runs with one leaf per part of documents; runs are merged so that few remain
"""
