"""Scores of published rule sets; thresholds are policy.

c4                 C4's line and page rules as scores. Thresholds are policy.
c4_lines           C4's line rules with the lines that they cut, as three projects order them. Thresholds of pages
characters         Shares of characters by class, and lengths of lines. Thresholds are policy: profile `code/redpa
fineweb            FineWeb's line rules as scores. Thresholds are policy.
gopher_dolma       Gopher's rules as scores, counted as Dolma counts them. Thresholds are policy: profile `gopher/
gopher_quality     Gopher's quality rules as scores. Thresholds are policy.
gopher_repetition  Gopher's repetition rules as scores. Thresholds are policy.
redpajama          RedPajama-v2's heuristic quality signals. Thresholds are policy: profiles `gopher/redpajama`, `
refinedweb_lines   RefinedWeb's line rules: the lines to cut, and how many of the words they hold. Thresholds are
repeated_tokens    Tokens that a text repeats in a row. Thresholds are policy: profile `dolma/1.6`.
"""
