"""Inside the allocation: start, watch and restart the ranks.

supervisor (node 0) ──► leader ──► nodes/ on shared storage ──► follower (every other node)
     │                                                               │
     └──► watch ──► ranks of node 0                                  └──► ranks of its node

supervisor    one job: train, audit, restart within bounds
allowance     the rank-seconds that a job may take; it is stopped before they are spent
result        how a job ended: `result.json`
watch         wait for the ranks of one attempt; end those that hang, and those whose sibling has died
hang          who waits for whom in ranks that hang; hang_dump is their part of it
leader        node 0's side of several nodes: orders, and the state of the remote ranks
follower      the supervisor of every other node
nodes         the files by which nodes agree: orders, reports, heartbeats
host_rounds   one round of checks of all nodes before ranks start
host_checks   disk, memory, clock and GPUs of a node; which nodes to exclude
peer_checks   the process that checks a node, its connection and a sum with the others
exclusion     machines that the run may not be placed on again
run_lock      one supervisor at a time, for as long as anything that it started is alive
lost_work     costs of failures: steps, seconds, seconds until training resumed
"""
