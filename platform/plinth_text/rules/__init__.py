"""Counts behind published rule sets.

    gopher      Gopher's rules as datatrove and as Dolma count; Dolma's repeated tokens
    c4          C4's line and page rules as counts, and the lines that they leave; facts of every line
    fineweb     FineWeb's line rules; FineWeb-2's rules in any script
    redpajama   RedPajama-v2's quality signals; characters by class and lengths of lines
    refinedweb  RefinedWeb's line rules
"""
