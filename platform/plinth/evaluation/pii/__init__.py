"""Personal data in the text that a checkpoint was trained on.

    detector   the corpus's own annotator, asked for every kind that can name a person
    training   the asset `pii/data`: what is left in training text after its edits

Does not belong here: the rules that find personal data (`corpus.annotate.pii`), and what a policy does with it.
"""
