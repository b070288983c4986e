"""Illegal content: lists of hashes and keywords, matched against records before anything of them is written.

    lists       files of the user, read and refused
    match       records against the lists

The annotator `illegal` matches documents that are stored already.
"""
