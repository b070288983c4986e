"""Whether a model treats groups alike, whether its text is toxic, and whether either moved between checkpoints.

    parameters    the section `evaluation.fairness` of a recipe
    pairs         counterfactual pairs: one text twice, with another group; those that come with Plinth
    bias          paired differences by attribute, clustered by template; two checkpoints compared
    job           the asset: one engine, one manifest; toxicity by the corpus's own annotator
    stage         the stage of the pipeline; its items recomputed, compared and shown
    measurement   facts, the gates `bias` and `toxicity`
    command       `plinth model fairness`

Likelihoods need no generation and no judge, so they suit base models. A difference says what the model's text
associates with a group; it is no account of harm in use.
"""
