"""Exposure of the canaries that a run was trained on (`plinth.corpus.canaries` plants them).

    exposure      ranks among references, exposure, one p-value for all canaries
    audit         lower bound on epsilon from the coins
    canaries      the asset: bits of canaries and references by the engine, and what follows from them
    stage         the stage of the pipeline; its items recomputed, compared and shown
    measurement   facts, the gate `canaries`
    command       `plinth model exposure`: the canaries at each checkpoint of a run

Formulas are in the modules that compute them. The steps that took each planted copy: `plinth.tokens.order.batch`.
"""
