"""Inside the allocation: start, watch and restart the ranks.

supervisor (node 0) ──► leader ──► nodes/ on shared storage ──► follower (every other node)
     │                                                               │
     └──► rank_watch ──► ranks of node 0                                  └──► ranks of its node

supervisor    one job: train, audit, restart within bounds
result        the end of a job; the lock that one supervisor at a time holds; the rank-seconds that a job may take;
              costs of failures: steps, seconds, seconds until training resumed
rank_watch    wait for the ranks of one attempt; end those that hang, and those whose sibling has died; who waits
              for whom
node_roles    node 0, which gives orders, and the other nodes, which execute them; one round of checks of all nodes
nodes         the files by which nodes agree: orders, reports, heartbeats
host_checks   disk, memory, clock and GPUs of a node; which nodes to exclude
peer_checks   the process that checks a node, its connection and a sum with the others
"""
