"""Bias between groups, toxicity of generated text, and drift of both between checkpoints.

    pairs         counterfactual pairs (one text with two groups); paired differences by attribute; comparison of two
                  checkpoints
    job           the asset and its stage; recomputation, comparison and display of its items
    measurement   the section `evaluation.fairness` of a recipe; values that gates read, the gates `bias` and `toxicity`
    command       the command `plinth model fairness`

Bias is measured with likelihoods, which need neither generation nor a judge and therefore suit base models. A
difference in likelihood shows an association in the model, but does not measure harm in use.
"""
