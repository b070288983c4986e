"""Which mixture: a swarm of small runs on the simplex, a surrogate of their loss, a proposal with its gain's interval.

    swarm      shares of the runs, drawn around a prior
    surrogate  loss as a function of the shares: a log-linear law or kernel ridge, chosen by cross-validation
    kernel     kernel ridge on shares and their logarithms, its settings chosen by leave-one-out
    overlay    a proposal as a recipe, and as the experiment that confirms it
    confirm    a proposal and its prior trained with other seeds, and whether the proposal holds
    propose    the best shares under caps, their gain over the prior, and when no such claim can be made
"""
