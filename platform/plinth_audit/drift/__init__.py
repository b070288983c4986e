"""Drift of text: a released model on held-out documents that came after it, next to those that its own run held out.

    judge        by slice: whether later documents come from where earlier ones came from, and which of them moved
    job          the asset: a row per document, look after look; statistics with the slices that drift
    stage        the stage, which no run of the pipeline makes; its figure
    proposal     a recipe that goes on from a release whose text has drifted; a slice in words
    definitions  the asset, its daily job and the sensor in Dagster
    command      `plinth model drift`

New text comes snapshot by snapshot, and is judged after each: the test holds at all looks together
(`statistics.exchangeable`), Bonferroni's over the slices that the first look could judge. No two documents are paired:
later ones are ranked among those of the reference.

Does not belong here: which model is the champion (`plinth_registry`).
"""
