"""Which mixture: a swarm of small runs on the simplex, a surrogate of their loss, a proposal with its gain's interval.

    swarm      shares of the runs, drawn around a prior; the confirmation of a proposal with other seeds
    surrogate  loss as a function of the shares: a log-linear law or kernel ridge, chosen by cross-validation
    proposals  the best shares under caps and their gain over the prior; a proposal as a recipe or an experiment
"""
