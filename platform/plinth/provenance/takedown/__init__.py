"""Takedown: everything that holds a document, its removal, and the proof of it.

    index         sorted keys of ledgers: rows by id, address, domain, licence and cluster
    search        what is asked for, to documents: by the index of ledgers
    similar       a text to documents: near duplicates, excerpts, verbatim spans
    exposed_runs  documents to runs, steps, and checkpoints here, retired, uploaded or published
    removal       what is asked for, to an entry of the exclusion list, with the number of documents it takes
    rebuild       assets downstream: rebuilt without it, or the reason why nothing can be reported yet
    report        the proof that the corpus is free of it, signed, with what still holds it
    remaining     what still holds it, where, and until when
    traces        copies of the text next to the content store: pages, MLflow, Dagster, logs
    measured      extraction and exposure of removed text under a checkpoint
    page          the report for a person: Markdown and HTML

Does not belong here: the list and the removal itself (`corpus.exclusions`), releases (`plinth_registry`).
"""
