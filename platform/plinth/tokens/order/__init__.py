"""The order of a run, as arithmetic.

    order        position -> sequence, and sequence -> positions
    permutation  a keyed bijection of range(n) and its inverse, in constant time
    steps        the positions of each step, where batch and row length may change
    poisson      steps whose sequences are drawn, each by itself, by a secret key
    parameters   schedules of batch and length, and amendments, as a recipe states them
    batch        the documents of a step, and the steps of a document
    planted      the steps that take each planted canary
"""
