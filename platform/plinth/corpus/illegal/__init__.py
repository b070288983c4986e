"""Illegal content: lists of hashes and keywords, matched against records before anything of them is written.

    lists       files of the user, read and refused
    match       records against the lists
    gate        in the documents stage: hits become rejects without text
    report      hits as a table for those who must answer for them
    parameters  lists and bounds

The annotator `illegal` matches documents that are stored already.
"""
