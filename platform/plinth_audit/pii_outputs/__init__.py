"""Personal data in the text that a checkpoint writes.

    parameters    the section `evaluation.pii_outputs` of a recipe
    outputs       texts without a prompt and after prompts that invite personal data, and the finds in them
    verbatim      which of the found strings are in training text
    stage         the stage of the pipeline; its items recomputed, compared and shown
    measurement   facts, the gate `pii_outputs`

The detector is the corpus's own (`plinth.evaluation.pii`), as is that of personal data in training text.
"""
