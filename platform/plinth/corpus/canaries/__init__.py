"""Canaries: texts of the pipeline's own making, planted in the training text to measure memorisation.

    parameters  how many canaries, at which repetitions
    generate    texts and coins from the seed

Every canary is in or out of the run by a coin of its own (Steinke et al. 2023, "Privacy Auditing with One (1)
Training Run", arXiv:2305.08846); references of the same making never are (Carlini et al. 2019, "The Secret Sharer",
arXiv:1802.08232). All text follows from the seed and the tokenizer's single words, so no text of a user's
enters by this way, which leads past filters and deduplication.

Does not belong here: losses, exposure and the audit, which are a measurement (`memorisation_canaries`).
"""
