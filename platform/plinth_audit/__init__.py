"""Audits of models and data. Loaded through entry points; no core module imports this package.

    fairness      differences between groups, toxicity of continuations, drift of both
    canaries      exposure of planted texts, a lower bound on epsilon
    extraction    verbatim extraction of training text at risk
    pii_outputs   personal data in generated text
    drift         scores of a released model on newer held-out text
    trace         tracing of a text to documents, shards, steps and checkpoints
    text_export   export of curated text with ledger columns
    papers        model card, data card, bill of materials and summary of training content, written from evidence
    quarantine    matches with lists of illegal content; rescan of stored text with updated lists
    takedown      search for a document in all artifacts, removal of the document, and the report

Each folder contains a complete feature: parameters, computation, pipeline stage, gate, page section, command.
"""
