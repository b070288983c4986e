"""Counts behind published rule sets.

    gopher_quality        Gopher's quality rules
    fineweb               FineWeb's line rules
    any_language          FineWeb-2's rules: words, sentences, stop words and repetition in any script
    repetition            Gopher's repetition rules: repeated lines, paragraphs and n-grams (copies: the n-grams)
    dolma_counts          Gopher's rules as Dolma's tagger counts
    c4_pages              C4's line and page rules as counts, and the lines that they leave (c4_line.h: one line)
    c4_line_rules         facts of every line for C4's rules, so that lines can be cut
    phrases.h             phrases and marks of citations, for C4
    redpajama_signals     RedPajama-v2's quality signals
    refinedweb_kernel     RefinedWeb's line rules (refinedweb_reference: the few pages that the kernel leaves)
    periods               Dolma 1.6's rule against short periods
    tally                 characters by class, and lengths of lines
"""
