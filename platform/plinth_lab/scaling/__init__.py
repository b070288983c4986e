"""Scaling ladders: what a larger run will reach, from small ones; fitted, predicted with intervals.

    law       L(N, D) = E + A / N^alpha + B / D^beta: optimum of a budget, with inference and repeated text in its price
    fit       the law from a table of runs: variable projection, then the published objective; statuses, intervals
    predict   loss and probes of a larger run, stored and compared with the truth; intervals of an optimum;
              the best model that money buys on a fleet
    ladder    sizes by horizons with hyperparameters by rule, their FLOPs; a ladder as an experiment
    command   `plinth experiment scaling`
"""
