"""Takedown: everything that holds a document, its removal, and the proof of it.

    index         the stage of the pipeline: sorted keys of ledgers, by id, address, domain, license and cluster
    search        a request to documents: by the index of ledgers; near duplicates, excerpts, verbatim spans of a text
    exposed_runs  documents to runs, steps, and checkpoints here, retired, uploaded or published
    held_models   checkpoints to candidates, releases and exports
    removal       a request to an entry of the exclusion list, with the number of documents it takes
    states        assets downstream: their state; rebuilt without it, or the reason why nothing can be reported yet
    remaining     what still holds it, where, and until when; copies next to the content store
    measured      extraction and exposure of removed text under a checkpoint
    report        the signed proof that the corpus is free of it, with what still holds it
    page          the report for a person: Markdown and HTML
    command       `plinth corpus takedown`

Does not belong here: the list and the removal itself (`plinth.corpus.exclusions`), releases (`plinth_registry`).
"""
