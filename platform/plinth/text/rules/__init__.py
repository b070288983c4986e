"""Counts behind published rule sets.

    c4_line_rules         The lines of a text with what C4's rules ask of each, and where they lie, so that lines can
    c4_pages              C4's line and page rules as counts (Raffel et al. 2020, section 2.2, and its published code)
    copies                Which runs of words a text repeats: the most frequent n-gram, and n-grams that occurred befo
    dolma_counts          Counts behind Gopher's rules as Dolma's tagger `gopher_v1` makes them (Soldaini et al. 2024;
    gopher_quality        Counts behind Gopher's quality rules (Rae et al. 2021, table A1) and FineWeb's (Penedo et al
    periods               How often a text says the same few tokens in a row: Dolma 1.6's rule against degenerate text
    redpajama_signals     RedPajama-v2's heuristic quality signals of a text (Weber et al. 2024, table 2; RedPajama-Da
    refinedweb_kernel     RefinedWeb's line rules (Penedo et al. 2023, table 5) as DCLM's code applies them, step by s
    refinedweb_reference  RefinedWeb's line rules on one Python string, phrases of navigation included: the few pages
    repetition            Repeated lines, paragraphs and word n-grams: Gopher's repetition rules (Rae et al. 2021, tab
    tally                 Characters of a text by class, and the lengths of its lines.
"""
