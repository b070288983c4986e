"""Corpus pipeline: from raw sources to curated documents. Every document gets a decision and its reason.

    sources/    records read from WARC, HTML, JSONL, Parquet, text and source trees; inventory of files by content hash
    extract/    extraction of the main content of HTML pages, in a worker process that can be killed
    illegal     lists of illegal content, matched before any text is written; illegal_gate: reports of the matches
    exclusions  documents that were taken down and stay out of every later snapshot
    documents/  normal form and identity of documents; tables of documents and of rejects
    lists       the user's lists as stored files, as memory-mapped tables, and as lexicons
    models/     classifiers, taggers and n-gram models trained on buckets of the corpus
    annotate/   scores, labels and spans as sidecars
    policy/     rules over columns that keep or drop documents, with reasons and edits; what-if
    slices/     gates measured on labeled documents; labels of reviewers
    dedup/      exact, near, semantic, line and substring deduplication; each cluster keeps one document
    protected/  held-out documents, contamination, protected sets
    verdicts    the final decision and its reason, one per document
    curate      the training text: kept documents with their edits applied
    canaries    generated texts, inserted after curation to measure memorization; planted_canaries: the stage
    funnel      numbers of documents and bytes before and after every stage

    sidecars    data files of documents paired with their sidecars; one number per document over all buckets; samples
                of documents by keyed hash

Stages run in this order, except that `slices/` is measured separately. Not here: tokens (`plinth.tokens`), compiled
kernels for text (`plinth.text`), Dagster code (`plinth_assets`).
"""
