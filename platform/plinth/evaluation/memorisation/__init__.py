"""What a checkpoint has memorised: canaries that were planted for it, and text of risk.

    draws       the training steps that took each planted copy, and whether all of it was a target
    exposure    ranks among references, exposure, one p-value for all canaries
    audit       lower bound on epsilon from the coins
    canaries    bits of canaries and references by the engine, and what follows from them

Formulas stand in the modules that compute them. Does not belong here: texts and coins (`corpus.canaries`).
"""
