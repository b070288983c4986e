"""Words and sentences of English text as spaCy's blank pipeline splits them, which datatrove's filters count.

    rules.json  the data: classes of characters, exceptions, units (written by tests/agreement/english_rules.py)
    tables      the data as tables for kernels
    affixes.h   what is split off at the ends of a chunk and inside it
    urls.h      whether a chunk is a URL, and so one word
    words       the words of a text: chunks between white space, their affixes, exceptions
    columns     the words of a column of texts, split once for all that count them
    merges      exceptions that stand across words after splitting (`foo:)` ends with an emoticon)
    sentences   how many sentences a text has

A word is what spaCy calls a token that is not white space. Differences from spaCy are defects: the tests hold both
equal on the documents of the machine, on the exceptions and on random text.
"""
