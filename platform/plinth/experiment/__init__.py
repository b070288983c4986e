"""Questions put to small runs.

    parameters  the file of an experiment
    arms        the recipes of its runs: overlays over one recipe, what may not differ, the budget
    measure     the test text under a model; what is kept of a run, however it ended
    noise_scale  the critical batch of a run from its gradient noise
    sweep       arms of one key's values; the best value with an interval
    record      attempts, and what runs took over instead of making; in no identity
    scores      scores of one run of an arm, by document
    effects     each arm against the base, paired by seed and document, with intervals
    stopping    arms that cannot win any more, by a test that may be looked at after every seed
    page        the page of an experiment
    answer      the manifest of the effects, the page's contents, which arms stop
    mixture/    which mixture: a swarm of runs, a surrogate of their loss, a proposal with its gain's interval
    scaling/    the law of a ladder of runs, its optimum and price; what a larger run will reach
    value/      the value of a source before it is taken, from a bounded sample, with intervals
"""
