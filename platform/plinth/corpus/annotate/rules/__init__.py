"""Scores of published rule sets. Thresholds are policy: the profiles of `policy/profiles` hold them.

    c4                 C4's line and page rules; with the lines that they cut, in the order of three projects;
                       RefinedWeb's line rules
    gopher             Gopher's quality and repetition rules, also as Dolma counts them; repeated tokens;
                       RedPajama-v2's signals; shares of characters by class, lengths of lines
    fineweb            FineWeb's line rules; FineWeb-2's rules in any language but English, over the limits of that
                       language; limits and stop words by language: published, listed, or fitted from the documents of
                       a reference

The counting itself is in `plinth_text.rules`.
"""
