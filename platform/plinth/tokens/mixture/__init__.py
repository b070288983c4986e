"""Weights of a recipe to exact counts of sequences.

    mixture        the stage: phases and weights to exact counts, decided before the run starts
    parameters     phases, weights and bounds, as a recipe states them
    selectors      keys of weights: a bucket, a stream of one, or every stream with certain values
    weights        a phase's weights to the exact share of every stream, at its beginning and end
    caps           bounds on epochs, and redistribution of what exceeds them
    apportion      shares to whole counts per block, in closed form
    mixture_audit  counts against the recipe's shares, every 1,000 blocks
"""
