"""Drift of text: a released model on held-out documents that came after it, next to those that its own run held out.

    judge        slices that have moved, by a test that holds whenever one looks; a recipe that goes on training on
                 them
    job          the asset, its stage and figure
    definitions  the asset, its daily job and the sensor in Dagster
    command      `plinth model drift`

New text comes snapshot by snapshot, and is judged after each: the test holds at all looks together
(`statistics.exchangeable`), Bonferroni's over the slices that the first look could judge. No two documents are paired:
later ones are ranked among those of the reference.

Does not belong here: which model is the champion (`plinth_registry`).
"""
