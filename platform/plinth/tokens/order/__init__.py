"""Order of a run's sequences, computed from the mixture without stored tables.

    order        position -> sequence and back, through a keyed bijection of range(n) in constant time; steps with
                 Poisson sampling, drawn with a secret key
    steps        the positions of each step, if batch and row length may change; schedules of batch and length, and
                 amendments, as a recipe states them
    batch        the documents of a step, the steps of a document, the steps that train on each planted canary
"""
