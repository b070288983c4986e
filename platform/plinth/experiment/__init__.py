"""Questions put to small runs.

    scores    scores of one run of an arm, by document
    effects   each arm against the base, paired by seed and document, with intervals
    stopping  arms that cannot win any more, by a test that may be looked at after every seed
    page      the page of an experiment
    scaling/  the law of a ladder of runs, its optimum and price; what a larger run will reach
    value/    the value of a source before it is taken, from a bounded sample, with intervals
"""
