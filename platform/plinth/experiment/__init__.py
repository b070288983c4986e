"""Questions put to small runs.

    scores  scores of one run of an arm, by document
    value/  the value of a source before it is taken, from a bounded sample, with intervals
"""
