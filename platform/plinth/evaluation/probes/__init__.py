"""Probes: small sets of items whose answers are scored by likelihood, in the training loop and after it.

    parameters  which built-in probes, and which of the user's
    item        one item: prompt, right and wrong answers, control
    scoring     from likelihoods to bits per byte, margin, accuracy centred on chance, signal (pure)
    noise       noise and signal-to-noise ratio of a probe; which ones may decide (pure)

Six families: general knowledge, code, maths, long context, languages, safety boundary. Every score has a control, so
that the mere likelihood of an answer is not read as ability.
"""
