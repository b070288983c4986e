"""The page of an evaluation: every measure of one checkpoint with its interval, its control and its noise.

    data      contents of the page, as records
    sections  from the statistics of each evaluation asset to a section of the page
    figures   measures with intervals, curves over checkpoints with their noise, loss by position
    page      `page(data) -> str`, self-contained

Does not belong here: reading manifests or runs.
"""
