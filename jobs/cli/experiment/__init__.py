"""Questions put to small runs.

    scaling  the law of a ladder of runs, and what a larger one will reach
"""
