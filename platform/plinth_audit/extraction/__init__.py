"""Extraction of training text at risk: does a checkpoint continue it word for word?

    parameters    the section `evaluation.extraction` of a recipe: slices of risk, documents of each
    windows       documents of every slice, trained on and held out; their tokens that are given and compared
    edits         Levenshtein distance of two sequences of tokens
    extraction    the asset: what the checkpoint writes after text of risk, beside held-out text
    stage         the stage of the pipeline; its items recomputed, compared and shown
    measurement   facts, the gate `extraction`

Does not belong here: the documents that a completion comes from (`plinth_audit.trace`).
"""
