"""Raw sources in, curated documents out, with a decision and its reason for every document.

sources/       read WARC, HTML, JSONL, text and source trees; inventory of files by content
extract/       main content of pages, in a child process that may be killed
normalize      one form of text: Unicode, line ends, control characters, mojibake
boundaries     words, sentences and paragraphs cut or glued at line and page ends
documents      parts of documents and of rejects
annotate/      scores, labels and spans as sidecars
expressions    the language of policies
policy         columns to keep or drop, with reasons and edits
dedup/         exact and near duplicates over all buckets, one survivor each
holdout        documents set aside before training
contamination  overlap of training documents with those
verdicts       one decision per document
curate         the text that remains, edits applied
funnel         where every document and byte went
claims         what a release claims of its text, counted from the text's own sidecars
sidecars, tables, repeats   rows that stand side by side; columns of decisions; repeated ids
"""
