"""How documents fill sequences of S tokens, and how the sequences are copied into rows.

    packing       definitions of both packings; counts of concatenated streams
    best_fit      best-fit-decreasing: lengths of documents -> pieces of sequences
    packed        the stage: the pieces of every sequence of a best-fit bucket, `{bucket}/packed`
    layout        sequence -> pieces, and span -> sequences, for both packings, in constant time
    joint_layout  the layouts of all streams of a run as one
    gather        pieces -> rows, in one compiled pass over mapped shards
    pointers      addresses inside compiled code
"""
