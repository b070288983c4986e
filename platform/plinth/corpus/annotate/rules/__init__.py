"""Scores of published rule sets. Thresholds are policy: the profiles of `policy/profiles` hold them.

    c4                 C4's line and page rules
    c4_lines           C4's line rules with the lines that they cut, in the order of three projects
    characters         shares of characters by class, lengths of lines
    fineweb            FineWeb's line rules
    fineweb2           FineWeb-2's rules in any language but English, over the limits of that language
    language_limits    limits and stop words by language: published, listed, or fitted from the documents of a
                       reference
    gopher_quality     Gopher's quality rules
    gopher_repetition  Gopher's repetition rules
    gopher_dolma       Gopher's rules as Dolma counts them
    redpajama          RedPajama-v2's quality signals
    refinedweb_lines   RefinedWeb's line rules
    repeated_tokens    tokens that repeat in a row

The counting itself is in `plinth_text.rules`.
"""
