"""Verdicts and edits computed from annotation columns, without reading text.

    parameters       the frozen models of rules, edits and policies
    expressions      the expression language of rules: parsing and checks
    compiled_policy  a compiled policy, after the license gate; the column values of one document that a rule read
    policy           the stage: verdicts, reasons and edits of every document; number of documents per rule: matched,
                     first match, sole match
    profiles         published filter rules as named, versioned profiles
    whatif           the effect of a different policy, computed from stored columns

All callers evaluate policies through `compile_policy`. Not here: counting (`annotate`), and the decision over all
stages (`verdicts`).
"""
