"""The user's lists: blocked domains, words, hashes.

listfiles  Files of lists: one entry a line, `#` starts a comment line, UTF-8, plain or gzip.
lists      Lists of the user (blocked domains, words, hashes): their files as parts, by content.
"""
