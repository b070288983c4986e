"""Questions put to small runs.

experiment  check, run and show arms of a recipe, with effects and intervals
verdict     the verdict on a source, in words
scaling     the law of a ladder of runs, and what a larger one will reach
"""
