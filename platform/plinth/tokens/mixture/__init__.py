"""Weights to exact counts of sequences.

    advice         What to know about a mixture before training on it: streams with too little text, and what would me
    apportion      How many sequences each bucket gives to each block: whole numbers, exact, in closed form.
    caps           Bounds on epochs: what they take away, and who gets it.
    curriculum     A phase as legs: stretches whose shares go along a line, or stay.
    mixture        Phases and weights to exact counts of sequences: what the run will see, decided before it starts.
    mixture_audit  The mixture that comes out, against the one that the recipe states: at every 1,000 blocks, from the
    parameters     What the run sees, in which shares.
    selectors      What a weight of the mixture names: a bucket, a stream of one, or every stream with certain values.
    weights        From what a phase says to the exact share of every stream, at its beginning and at its end.
"""
