"""Drift of text: a released model on held-out documents that came after it, beside those that its own run held out.

    heldout    held-out documents that the model has not been scored on, apart by whether its run held them out
    judge      by slice: whether later documents come from where earlier ones came from, and which of them moved
    job        the asset: a row per document, look after look; stats with what is found

New text comes snapshot by snapshot, and somebody looks after each: the test holds at all looks together
(`statistics.exchangeable`), Bonferroni's over the slices that the first look could judge. No two documents are paired:
later ones are ranked among those of the reference.

Does not belong here: which model is the champion (registry), what follows (`operation.continued_training`).
"""
