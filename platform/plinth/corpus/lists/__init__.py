"""The user's lists: blocked domains, words, hashes.

listfiles   the form of list files: one entry a line, `#` starts a comment, UTF-8, plain or gzip
list_table  entries of a large list, sorted by hash, in a file that processes map
lists       the asset of a list: its files as parts, by content
"""
