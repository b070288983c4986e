"""Terms of lexicons, obfuscated terms, and candidates for personal data.

terms        the words and phrases of a lexicon in texts
obfuscation  obfuscated terms: signs for letters, letters apart, repeated letters (C only)
pii_scan     candidates for personal data, in one pass over the bytes
pii_numbers  numbers among them, by form or by words near them (C only)
pii_words    words that give the meaning of a number beside them
pii_places   kinds and table of the candidates
"""
