"""Annotation columns to verdicts and edits; no text is read.

    parameters       the frozen models of rules, edits and policies
    expressions      the language of rules: read and checked once
    compiled_policy  a policy ready to be evaluated, after the license gate; the values that a rule read of one
                     document
    policy           the stage: verdicts, reasons and edits of every document; documents by rule: first, alone, all
    profiles         published filter rules as named, versioned profiles
    whatif/          the effect of another policy, from stored columns

All callers evaluate policies through `compile_policy`. Does not belong here: counting (`annotate`), the decision over
all stages (`verdicts`).
"""
