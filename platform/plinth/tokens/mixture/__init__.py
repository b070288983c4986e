"""From the weights of a recipe to exact counts of sequences.

    mixture        the stage: phases and weights to exact counts, decided before the run starts
    parameters     phases, weights and limits on epochs, as a recipe states them; keys that select streams
    weights        a phase's weights to the exact share of every stream, at its beginning and end
    caps           limits on epochs, and redistribution of the excess
    apportion      shares to whole counts per block, in closed form; comparison of counts with the recipe's shares
"""
