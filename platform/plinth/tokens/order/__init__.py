"""The order of a run, as arithmetic.

    batch        What a step saw, and when a document was seen: computed from the manifests, never logged.
    order        The order of a run as arithmetic: position -> sequence, and sequence -> positions.
    parameters   Batch size and sequence length over a run, and amendments of a run that has begun.
    permutation  A keyed bijection of range(n), and its inverse, evaluated at any point in constant time.
    steps        Which positions of the order a training step takes, when the global batch may change at a boundary.
"""
