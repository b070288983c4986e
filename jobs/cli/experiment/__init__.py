"""Questions put to small runs.

    experiment  check, run and show arms of a recipe, with effects and intervals
    scaling     the law of a ladder of runs, and what a larger one will reach
"""
