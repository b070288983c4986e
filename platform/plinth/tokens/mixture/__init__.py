"""Weights of a recipe to exact counts of sequences.

    mixture        the stage: phases and weights to exact counts, decided before the run starts
    parameters     phases, weights and bounds, as a recipe states them; keys of weights
    weights        a phase's weights to the exact share of every stream, at its beginning and end
    caps           bounds on epochs, and redistribution of what exceeds them
    apportion      shares to whole counts per block, in closed form; counts against the recipe's shares
"""
