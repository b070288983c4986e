"""Supervision within the allocation: start, watch and restart the ranks.

supervisor (node 0) ──► leader ──► nodes/ on shared storage ──► follower (every other node)
     │                                                               │
     └──► rank_watch ──► ranks of node 0                                  └──► ranks of its node

    supervisor    one job: train, audit, restart within limits
    result        the end of a job; the run's lock; its allowance of rank-seconds; costs of failures: steps, seconds,
                  time to resume
    rank_watch    waits for the ranks of one attempt; ends hanging ranks and siblings of failed ranks; hang analysis
    node_roles    node 0, which gives orders, and the other nodes, which execute orders; host checks
    nodes         files shared by nodes: orders, reports, heartbeats
    host_checks   disk, memory, clock and GPUs of a node; exclusion of nodes
    peer_checks   process that checks a node, its connection and a collective sum
"""
