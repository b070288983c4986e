"""Inside the allocation: start, watch and restart the ranks.

supervisor (node 0) ──► leader ──► nodes/ on shared storage ──► follower (every other node)
     │                                                               │
     └──► watch ──► ranks of node 0                                  └──► ranks of its node

supervisor    one job: train, audit, restart within bounds
allowance     the rank-seconds that a job may take; it is stopped before they are spent
result        the end of a job; the lock that one supervisor at a time holds
watch         wait for the ranks of one attempt; end those that hang, and those whose sibling has died
hang          who waits for whom in ranks that hang, and a rank's own answer
node_roles    node 0, which gives orders, and the other nodes, which execute them
nodes         the files by which nodes agree: orders, reports, heartbeats
host_rounds   one round of checks of all nodes before ranks start
host_checks   disk, memory, clock and GPUs of a node; which nodes to exclude
peer_checks   the process that checks a node, its connection and a sum with the others
lost_work     costs of failures: steps, seconds, seconds until training resumed
"""
