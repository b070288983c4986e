"""Corpus pipeline: from raw sources to curated documents. Every document gets a decision and its reason.

    sources/    records read from WARC, HTML, JSONL, Parquet, text and source trees; inventory of files by content hash
    extract/    extraction of the main content of HTML pages, in a worker process that can be killed
    illegal     lists of illegal content, matched before any text is written; illegal_gate: reports of the matches
    exclusions  documents that were taken down and stay out of every later snapshot
    documents/  normal form and identity of documents; tables of documents and of rejects
    lists       lists supplied by the user, stored as files and read as memory-mapped tables or lexicons
    models/     classifiers, taggers and n-gram models trained on buckets of the corpus
    annotate/   scores, labels and spans as sidecars
    llm/        answers of language models about documents, and documents rewritten by them
    policy/     rules over columns that keep or drop documents, with reasons and edits; what-if
    slices/     error rates of the gates, measured on labeled documents; labels of reviewers
    dedup/      exact, near, semantic, line and substring deduplication; each cluster keeps one document
    protected/  held-out documents, contamination, protected sets
    verdicts    the final decision and its reason, one per document
    curate      the training text: kept documents with their edits applied
    canaries    generated texts, inserted after curation to measure memorization; planted_canaries: the stage
    funnel      numbers of documents and bytes before and after every stage

    sidecars    reads documents together with their sidecars; numbers the documents of all buckets; samples documents by
                a keyed hash

Stages run in this order, except that `slices/` is measured separately. Not here: tokens (`plinth.tokens`), compiled
kernels for text (`plinth.text`), Dagster code (`plinth_assets`).
"""
