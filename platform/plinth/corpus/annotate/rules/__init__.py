"""Scores of published rule sets. Thresholds are not here; they are in the profiles of `policy/profiles`.

    c4                 C4's line and page rules as scores; the lines to cut by C4's rules, in the order of three
                       projects; RefinedWeb's line rules
    gopher             Gopher's quality and repetition rules, in the original and in Dolma's way of counting; repeated
                       tokens; RedPajama-v2's signals; shares of characters by class, lengths of lines
    fineweb            FineWeb's line rules; FineWeb-2's rules for all languages except English, relative to the limits
                       of the language; limits and stop words by language: published, from a list, or fitted on
                       reference documents

The kernels that count are in `plinth_text.rules`.
"""
