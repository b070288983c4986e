"""One verdict per document, then the text that remains.

curate     curated text: the documents that verdicts let through, with their edits applied
claims     the statistics that a release claims of its text, counted from the text's own sidecars
"""
