"""The cost of a run and of a corpus before they start.

    plan           a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
    fleet          every division of a run over a fleet, ranked by time
    command        `plinth run plan`, `plinth corpus scale`
    corpus         core hours, bytes and money for a corpus of any size, by measured rates or those of finished runs
"""
