"""What a checkpoint has memorised: canaries that were planted for it, and text of risk.

    draws         the training steps that took each planted copy, and whether all of it was a target
    exposure      ranks among references, exposure, one p-value for all canaries
    audit         lower bound on epsilon from the coins
    canaries      bits of canaries and references by the engine, and what follows from them

    parameters    slices of risk, how many documents of each
    candidates    documents of every slice, from the ledger: trained on and held out
    text_windows  the tokens of a document that are given, and those that are compared
    edits         fewest edits between two sequences of tokens
    extraction    what the checkpoint writes after text of risk, beside held-out text

Formulas stand in the modules that compute them. Does not belong here: texts and coins (`corpus.canaries`), and the
documents that a completion comes from (`provenance.trace`).
"""
