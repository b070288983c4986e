"""Takedown: everything that holds a document, its removal, and the proof of it.

    index         the stage of the pipeline: sorted keys of ledgers, by id, address, domain, license and cluster
    search        a request to documents; a request to an entry of the exclusion list, with the number of documents it
                  takes
    exposed_runs  documents to runs, steps, and checkpoints wherever they are; extraction and exposure of removed text
                  under one
    remaining     what still holds it, where, and until when; copies next to the content store; candidates, releases,
                  exports
    report        the signed proof that the corpus is free of it and everything downstream rebuilt, with what still
                  holds it
    page          the report for a person: Markdown and HTML
    command       `plinth corpus takedown`

Does not belong here: the list and the removal itself (`plinth.corpus.exclusions`), releases (`plinth_registry`).
"""
