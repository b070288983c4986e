"""Figures that gates read, counted again from the tables that they were counted from: no signature stands in for that.

    measurements   what was measured, counted again from the rows of its items; stated and counted figures side by
                   side
    corpus         contamination, licences and terms, the proof of resume: from training text's own columns

A table is named by its digest in a manifest that the evaluator signed, and compared with it when it is first read on a
machine. What the model said of an item (its bits, its answers) is taken from the table: counting that again needs the
model, and judging text again its annotators. Events and cost of a run have no table. Those are believed as signed.
"""
