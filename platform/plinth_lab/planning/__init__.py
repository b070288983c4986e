"""The cost of a run and of a corpus before they start.

    plan           a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
    fleet          every division of a run over a fleet of devices, ranked
    purchase       the best model that money buys on a fleet
    plan_command   `plinth run plan`
    corpus         core hours, bytes and money for a corpus of any size, by measured rates or those of finished runs
    scale_command  `plinth corpus scale`
"""
