"""Scores of published rule sets. Thresholds are not here; they are in the profiles of `policy/profiles`.

    c4                 C4's line and page rules as scores; the lines that C4's rules cut, as implemented by three
                       projects; RefinedWeb's line rules
    gopher             Gopher's quality and repetition rules, counted as in the paper and as in Dolma; repeated tokens;
                       RedPajama-v2's signals; shares of characters by class, lengths of lines
    fineweb            FineWeb's line rules; FineWeb-2's rules for all languages except English, relative to the limits
                       of the language; limits and stop words by language, which are published, read from a list, or
                       fitted to reference documents

The kernels that count are in `plinth_text.rules`.
"""
