"""Verdicts and edits computed from annotation columns, without reading text.

    parameters       the frozen models of rules, edits and policies
    expressions      the expression language of rules: parsing and checks
    compiled_policy  parsed and checked rules, with the license gate that runs first; the column values that a rule read
                     for one document
    policy           the stage: verdicts, reasons and edits of every document; number of documents per rule: matched,
                     first match, sole match
    profiles         published filter rules as named, versioned profiles
    whatif           the effect of a different policy, computed from stored columns

All callers evaluate policies through `compile_policy`. Not here: the computation of columns (`annotate`), and the final
decision over all stages (`verdicts`).
"""
