"""Questions put to small runs.

    value/  the value of a source before it is taken, from a bounded sample, with intervals
"""
