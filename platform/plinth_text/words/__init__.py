"""Words, their hashes and n-grams.

    split         positions of words and line ends
    hashes        hashes of words and n-grams; sets of hashes, and hashes found in a large sorted array
    script_words  the words of a text in any script
"""
