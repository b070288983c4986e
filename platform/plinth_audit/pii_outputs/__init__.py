"""Personal data in the text that a checkpoint writes.

    parameters    the section `evaluation.pii_outputs` of a recipe
    job           the asset, what the checkpoint writes and where it is in training text; its stage and items
    measurement   facts, the gate `pii_outputs`

The detector is the corpus's own (`plinth.evaluation.pii`), as is that of personal data in training text.
"""
