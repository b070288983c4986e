"""Illegal content: lists of hashes and keywords, held against records before anything of them is written.

    hosts     host names of addresses
    lists     files of the user, read and refused
    match     records against the lists
    gate      in the documents stage: hits become rejects without text
    find      what in the store hits the lists as they are now
    report    hits as a table for those who must answer for them

What lists say of documents that are stored already is the annotator `illegal`.
"""
