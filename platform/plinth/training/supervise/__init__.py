"""Supervision within the allocation: start, watch and restart the ranks.

supervisor (node 0) ──► leader ◄── TCP ──► follower (every other node)
     │                                        │
     └──► rank_watch ──► ranks of node 0      └──► ranks of its node

    supervisor    one job: train, audit, restart within limits
    takeover      start of a job after a killed supervisor or a lost node 0
    job_ranks     ranks of all nodes: start, replacement, attestation, exit statuses
    job_log       timeline of the job; costs of failures: steps, seconds, time to resume
    result        the end of a job; the run's lock; its allowance of rank-seconds
    rank_watch    waits for the ranks of one attempt; ends hanging ranks and siblings of failed ranks; hang analysis
    leadership    the right to act for a run, and its succession after the loss of node 0
    leader        node 0: gives orders to the other nodes, reads their reports, checks the hosts
    follower      any other node: executes the orders
    nodes         records that nodes exchange: orders and reports; start of a node's processes
    rendezvous    record by which the other nodes find node 0
    host_checks   disk, memory, clock and GPUs of a node; exclusion of nodes
    peer_checks   process that checks a node, its connection and a collective sum
"""
