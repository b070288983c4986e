"""Documents to sequences.

    best_fit      Best-fit-decreasing: documents to sequences of S targets, no document cut that fits.
    gather        Lay the pieces of sequences into rows: one compiled pass over the mapped shards of all streams, with
    joint_layout  The layouts of all streams of a run as one, so that a step's pieces are collected at once, whatever
    layout        Which pieces of a stream lie in which of its sequences, and back; for both packings, in constant tim
    packed        The pieces of every sequence of a best-fit bucket, made once: `{bucket}/packed`.
    packing       How documents fill sequences: where sequences begin, which tokens see each other and are learnt, wha
"""
