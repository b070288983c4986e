"""Annotation columns to verdicts and edits; no text is read.

    parameters       the frozen models of rules, edits and policies
    expressions      the language of rules: read and checked once
    compiled_policy  a policy ready to be evaluated, and the values that a rule read of one document
    rights           the licence gate before the rules: licences and terms, from the documents' own columns
    rule_kernels     documents by rule: first, alone, all
    policy           the stage: verdicts, reasons and edits of every document
    profiles/        published filter rules
    whatif/          the effect of another policy, from stored columns

Whoever evaluates a policy goes through `compile_policy`. Does not belong here: counting (`annotate`), the decision over
all stages (`curate/verdicts`).
"""
