"""Annotation columns to verdicts and edits; no text is read.

    compiled_policy  A policy as arrays: which rules fire on which rows, and the values that made them.
    expressions      Expressions of a policy: Python's comparisons over columns, checked once, evaluated on Arrow colu
    masks            Conditions as numpy masks, where that is quicker than Arrow: a column of numbers beside a number,
    parameters       Policies: from annotation columns to verdicts and edits.
    policy           Columns to verdicts: which documents a policy keeps, why it drops the others, and what it edits.
    profiles/        Published filter rules as named, versioned profiles: `policies: {default: {profiles: [gopher/data
    rule_kernels     Which rules fire on which documents, counted in one pass: first, alone, and all of them.
    whatif/          The effect of another policy, from stored columns.
"""
