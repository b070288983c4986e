"""Counts that published rule sets for text quality need.

    gopher      Gopher's rules as datatrove and Dolma count them; Dolma's rule on repeated tokens
    c4          C4's line and page rules as counts, and the lines that they keep; facts of every line
    fineweb     FineWeb's line rules; FineWeb-2's rules in any script
    redpajama   RedPajama-v2's quality signals; characters by class and lengths of lines
    refinedweb  RefinedWeb's line rules
"""
