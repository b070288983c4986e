"""One verdict per document, then the text that remains.

claims     What is claimed about training text, counted from the text's own sidecars and not from the stages'
curate     Curated text: the documents that verdicts let through, with their edits applied.
survivors  Who stands for documents that deduplication took: the survivors of their clusters, for people who look
verdicts   One decision and one reason per document, from the sidecars alone; no text is read.
"""
