"""The page of an evaluation: every measure of one checkpoint with its interval, its control and its noise.

    data      contents of the page, as records
    page      `page(data) -> str`, self-contained

Does not belong here: reading manifests or runs.
"""
