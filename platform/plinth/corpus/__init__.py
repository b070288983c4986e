"""Raw sources in, curated documents out, with a decision and its reason for every document.

    sources/    records out of WARC, HTML, JSONL, Parquet, text and source trees; inventory of files by content
    extract/    main content of HTML pages, in a worker that can be killed
    illegal     lists of illegal content, matched before anything is written; illegal_gate: hits become reports
    exclusions  documents that were taken down and stay out of every later snapshot
    documents/  normal form, identity, parts of documents and of rejects
    lists       the user's lists as parts, as tables that processes map, and as lexicons
    models/     classifiers, taggers and n-gram models trained on buckets of the corpus
    annotate/   scores, labels and spans as sidecars
    policy/     columns to keep or drop, with reasons and edits; what-if
    slices/     gates measured on documents of known truth; labels of reviewers
    dedup/      exact, near, semantic, lines, substring: one survivor per cluster
    protected/  held-out documents, contamination, protected sets
    verdicts    one decision and one reason per document
    curate      the text that remains
    canaries    generated texts, planted after curation to measure memorization; planted_canaries: the stage
    funnel      documents and bytes in and out of every stage

    sidecars    parts of documents matched with the parts of their sidecars; one number per document over all of them;
                documents chosen by keyed hash

Stages run in this order, except that `slices/` is measured separately. Does not belong here: tokens (`plinth.tokens`),
compiled kernels over text (`plinth.text`), Dagster wiring (`plinth_assets`).
"""
