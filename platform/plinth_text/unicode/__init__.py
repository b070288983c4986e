"""Code points: decoding, classes, case folding.

codepoints    decode UTF-8 in place, lower-case, word separators; the buffers of a string column
characters    flags of `str` methods, as datatrove counts: white space, line break, letter, punctuation
classes       flags of `str` methods and regular expressions, for the other rule sets; NFD of a code point
scripts       kinds of code points for words in any script
fold          texts in the form in which they count as equal
fold_letters  the plain letter that an obfuscated character stands for
"""
