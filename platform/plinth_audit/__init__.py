"""The ring's package for what a release owes to others. Found through entry points; nothing of the core imports it.

    fairness      differences between groups, toxicity of continuations, drift of both
    canaries      exposure of planted texts, a lower bound on epsilon
    extraction    training text at risk that a checkpoint continues word for word
    pii_outputs   personal data in the text that a checkpoint writes
    drift         a released model on held-out text that came after it
    trace         a text back to documents, shards, steps and checkpoints
    text_export   curated text with its columns of the ledger, for others
    papers        model card, data card, bill of materials, summary of training content, out of evidence
    quarantine    hits on lists of illegal content; stored text that grown lists hit
    takedown      everything that holds a document, its removal, and the proof

Each folder has a feature whole: parameters, work, stage of the pipeline, gate, section of the page, command.
"""
