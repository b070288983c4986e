"""Takedown: everything that holds a document, its removal, and the proof of it.

    index         sorted keys of ledgers: rows by id, address, domain, licence and cluster
    search        what is asked for, to documents: by the index of ledgers
    similar       a text to documents: near duplicates, excerpts, verbatim spans
    exposed_runs  documents to runs, steps, and checkpoints here, retired, uploaded or published
    removal       what is asked for, to an entry of the exclusion list, with the number of documents it takes

Does not belong here: the list and the removal itself (`corpus.exclusions`), releases (`registry`).
"""
