"""Who trained a run with what, stated while it trains: one signed statement for each start of the ranks.

    host       a machine as it trains: commit, code, libraries, image, processors
    statement  the statements of a run: chained, signed as trainer, kept with every checkpoint

Needs no torch. Does not belong here: what a registered model's provenance makes of them (provenance, registry).
"""
