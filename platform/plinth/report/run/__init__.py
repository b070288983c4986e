"""The page of one training run.

    build     The page of a run, from its directory and the manifests it was made of.
    metrics   A run's timeline as columns over one axis, and what the run cost: pure functions from events to numbers.
    panels    Panels over one shared axis, as SVG that needs no library to look at: lines, stacked shares, a heat map,
    run_page  The page of one training run: what happened, why, and what it cost, on one axis. Self-contained.
"""
