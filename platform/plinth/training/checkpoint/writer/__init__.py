"""The process beside a rank that writes its part of a checkpoint.

    rank:    staging ──► shared memory      client ──► one JSON line per save
                              │                              │
    writer:               rank_part  ◄──────────── writer_process
                              └──► files, SHA-256, flush; rank 0's writer commits when all parts are there

    staging         copies the state of a rank into memory that another process can read
    client          starts the process, sends it orders, receives its answers
    writer_process  serves one rank; holds a lock for as long as it lives
    rank_part       writes one rank's part, and commits when every rank has written
"""
