"""How documents fill sequences of S tokens, and how the sequences are copied into rows.

    packing       how documents fill sequences, what is dropped; the pieces of a best-fit bucket, made once
    best_fit      best-fit-decreasing: lengths of documents -> pieces of sequences
    layout        sequence -> pieces, and span -> sequences, for both packings, in constant time
    gather        pieces -> rows, in one compiled pass over mapped shards
    pointers      addresses inside compiled code
"""
