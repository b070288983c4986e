"""Exposure of the canaries that a run was trained on (`plinth.corpus.canaries` plants them).

    audit         ranks among references, exposure, one p-value for all canaries; lower bound on epsilon from the
                  coins
    job           the asset, its stage; its items recomputed, compared and shown
    measurement   facts, the gate `canaries`
    command       `plinth model exposure`: the canaries at each checkpoint of a run

Formulas are in the modules that compute them. The steps that took each planted copy: `plinth.tokens.order.batch`.
"""
