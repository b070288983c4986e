"""Personal data in what a checkpoint was trained on, and in what it writes.

    detector   the corpus's own annotator, asked for every kind that can name a person
    training   the asset `pii/data`: what is left in training text after its edits
    parameters how many texts a checkpoint writes
    prompts    prompts that invite personal data
    outputs    the asset `pii/outputs`: what it writes without a prompt and after those
    verbatim   which of the found strings stand in training text

Does not belong here: the rules that find personal data (`corpus.annotate.pii`), and what a policy does with it.
"""
