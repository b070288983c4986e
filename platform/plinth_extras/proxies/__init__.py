"""Product proxies: small generated items that stand for what a product asks of a model, checked by code.

    parameters   number of items and seed (`evaluation.proxies`)
    measurement  the record in the catalogue of measurements
    families     items and their checks: JSON to a schema, formats, tool calls, instructions, copying from examples
    job          the asset: bits of every answer, the model's own output; comparison, scores, section of the page

An item has a right answer and a broken one of equal length, which differ in a few characters. The model's output passes
or not; a preference for the right answer over the broken one measures models that are too small to pass. There is no
judge, and nothing is downloaded.
"""
