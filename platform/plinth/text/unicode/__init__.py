"""Code points: classes, decoding, case folding.

    characters    What a code point is, as one byte of flags each: the same answers as Python's `str` methods.
    classes       What a code point is, as flags: the classes that profiles beyond datatrove's ask for.
    codepoints    Code points in UTF-8 buffers: decode one, lower-case it, and say whether it separates words.
    fold          Fold texts so that those which differ in case and white space alone become equal.
    fold_letters  The plain letter that a character stands for where somebody disguises a word: accents, lookalikes, s
"""
