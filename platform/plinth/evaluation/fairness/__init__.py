"""Whether a model treats groups alike, whether what it writes is toxic, and whether either moved between checkpoints.

    parameters  what a recipe sets
    pairs       counterfactual pairs: one text twice, with another group
    templates   the pairs that come with Plinth
    bias        paired differences by attribute, clustered by template, corrected for the number of attributes
    toxicity    continuations judged by the corpus's own annotator
    drift       two checkpoints on the same pairs and prompts
    job         the asset: one engine, one manifest

Likelihoods need no generation and no judge, so they suit base models. A difference says what the model's text
associates with a group; it is no account of harm in use.
"""
