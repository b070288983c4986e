"""The order of a run, as arithmetic.

    order        position -> sequence and back; a keyed bijection of range(n) in constant time; steps whose sequences
                 are drawn, each by itself, by a secret key
    steps        the positions of each step, where batch and row length may change; schedules of batch and length, and
                 amendments, as a recipe states them
    batch        the documents of a step, the steps of a document, the steps that take each planted canary
"""
