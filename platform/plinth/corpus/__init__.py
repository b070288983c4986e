"""From raw sources to curated documents, with a decision and its reason for every document.

    sources/    records read from WARC, HTML, JSONL, Parquet, text and source trees; inventory of files by content hash
    extract/    main content of HTML pages, extracted in a worker that can be killed
    illegal     lists of illegal content, matched before any text is written; illegal_gate: reports of the hits
    exclusions  documents that were taken down and stay out of every later snapshot
    documents/  normal form and identity of documents; tables of documents and of rejects
    lists       the user's lists as stored files, as memory-mapped tables, and as lexicons
    models/     classifiers, taggers and n-gram models trained on buckets of the corpus
    annotate/   scores, labels and spans as sidecars
    policy/     rules over columns that keep or drop documents, with reasons and edits; what-if
    slices/     gates measured on labeled documents; labels of reviewers
    dedup/      exact, near, semantic, lines, substring: one survivor per cluster
    protected/  held-out documents, contamination, protected sets
    verdicts    the final decision and its reason, one per document
    curate      the text that remains after all decisions and cuts
    canaries    generated texts, planted after curation to measure memorization; planted_canaries: the stage
    funnel      documents and bytes in and out of every stage

    sidecars    data files of documents matched with their sidecars; one number per document over all buckets; samples
                of documents by keyed hash

Stages run in this order, except that `slices/` is measured separately. Does not belong here: tokens (`plinth.tokens`),
compiled kernels over text (`plinth.text`), Dagster wiring (`plinth_assets`).
"""
