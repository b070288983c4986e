"""Words and phrases of lexicons, obfuscated terms, places of personal data.

    obfuscation  Terms in thin disguise: pieces whose letters show that somebody hid a word, and words spelt in single
    pii_scan     Where a text can hold personal data: one pass over the bytes that stops only at places worth a rule.
    pii_words    Words that say what the number beside them is, in the languages of the rules, as hashes with one bit
    terms        Find the words and phrases of a lexicon in texts: whole words only, whatever their case, and thinly d
"""
