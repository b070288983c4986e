"""True if a model treats groups alike, whether its text is toxic, and whether either moved between checkpoints.

    pairs         counterfactual pairs, one text twice with another group; paired differences by attribute; two
                  checkpoints compared
    job           the asset, one engine and one manifest; its stage; its items recomputed, compared and shown
    measurement   the section `evaluation.fairness` of a recipe; facts, the gates `bias` and `toxicity`
    command       the command `plinth model fairness`

Likelihoods need no generation and no judge, so they suit base models. A difference says what the model's text
associates with a group; it is no account of harm in use.
"""
