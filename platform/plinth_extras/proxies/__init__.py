"""Product proxies: small generated items that stand for what a product asks of a model, checked by code.

    measurement  the section `evaluation.proxies` of a recipe; the measurement
    job          items of the five families and the checks of their answers; the asset, its stage and items

An item has a right answer and a broken one of equal length, which differ in a few characters. The model's output passes
or not; a preference for the right answer over the broken one measures models that are too small to pass. There is no
judge, and nothing is downloaded.
"""
