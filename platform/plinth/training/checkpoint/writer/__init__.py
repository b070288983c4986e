"""The process beside a rank that writes its part of a checkpoint.

client     The process beside a rank that writes its checkpoints, as the rank sees it: started, given orders, hear
idle       Work for cores that nobody else wants, until somebody waits for it.
process    The process beside a rank that writes its checkpoints.
rank_part  One rank's part of a checkpoint, written from memory, and the commit when the parts of all ranks are th
staging    Copy the state of a rank into host memory that another process can read.
"""
