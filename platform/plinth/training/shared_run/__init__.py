"""Run whose state of record is in the bucket of a shared workspace. Its machines need no common file system.

    head      the record of the run in one object, the claim of its supervisor, and conditional changes
    files     form of a run's files in the bucket: pieces of growing files, small files by content
    shipping  copies of a run's files into the bucket by its supervisor, and from there onto any machine

Does not belong here: the shares of a checkpoint (checkpoint.shares).
"""
