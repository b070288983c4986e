"""Questions put to small runs.

    arms        the file of an experiment, and its runs: overlays over one recipe, fixed keys, the budget
    sweep       arms of one key's values; the best value with an interval
    measure     the test text under a model; the manifest of a run, however it ended; the critical batch
    record      attempts, and what runs took over instead of making; in no identity
    effects     scores of a run; each arm against the base with intervals; arms that cannot win any more
    answer      the manifest of the effects, the page's contents, which arms stop
    page        the page of an experiment
    mixture/    which mixture: a swarm of runs, a surrogate of their loss, a proposal with its gain's interval
    scaling/    the law of a ladder of runs, its optimum and price; what a larger run will reach
    value/      the value of a source before it is taken, from a bounded sample, with intervals
"""
