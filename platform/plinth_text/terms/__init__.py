"""Terms of lexicons, obfuscated terms, and candidates for personal data.

    lexicon  the words and phrases of a lexicon in texts, obfuscated ones too
    pii      candidates for personal data, in one pass over the bytes, and the words that give numbers a meaning
"""
