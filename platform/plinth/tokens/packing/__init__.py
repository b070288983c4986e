"""How documents fill sequences of S tokens.

    packing       how documents fill sequences, what is dropped; best-fit-decreasing, made once per bucket
    layout        sequence -> pieces, and span -> sequences, for both packings, in constant time
"""
