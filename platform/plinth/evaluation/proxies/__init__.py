"""Product proxies: small generated items that stand for what a product asks of a model, checked by code.

    parameters  how many items, drawn with which seed
    checks      whether an answer has the form that was asked for
    families    items: JSON to a schema, formats, tool calls, forms of instruction, copying from examples
    job         the asset: bits of every answer, and what the model writes itself

An item has a right answer and a broken one of equal length, which differ in a few characters. What the model writes
passes or not; whether it thinks the right answer likelier than the broken one says something of models that are too
small to pass. There is no judge, and nothing is downloaded.
"""
