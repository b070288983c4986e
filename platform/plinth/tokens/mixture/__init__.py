"""Conversion of a recipe's weights to exact counts of sequences.

    mixture        the stage, which converts phases and weights to exact counts before the run starts
    parameters     phases, weights and limits on epochs, as a recipe states them; keys that select streams
    weights        conversion of a phase's weights to the exact share of every stream, at its beginning and end
    caps           limits on epochs, and redistribution of the excess
    apportion      conversion of shares to whole counts per block, in closed form; comparison with the recipe's shares
"""
