"""Extraction of training text at risk: does a checkpoint continue it word for word?

    windows       documents of every slice, trained on and held out; their tokens that are given and compared
    job           the asset, its stage; its items recomputed, compared and shown
    parameters    the section `evaluation.extraction` of a recipe
    measurement   facts, the gate `extraction`

Does not belong here: the documents that a completion comes from (`plinth_audit.trace`).
"""
