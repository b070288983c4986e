"""Illegal content for those who must answer for it: hits without their text, and stored text that grown lists hit.

    search   blobs of the store that hit the lists as they are now
    command  `plinth corpus quarantine`

The gate that keeps listed records out of the documents is part of the corpus (`plinth.corpus.illegal`).
"""
