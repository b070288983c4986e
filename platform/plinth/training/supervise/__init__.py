"""Inside the allocation: start, watch and restart the ranks.

follower      The supervisor of any node but the first: starts, signals and ends its ranks as node 0 orders, and r
leader        Node 0's side of several nodes: it gives orders and hears how the ranks away fare, as if they were i
nodes         Several nodes, one supervisor on each: the first decides, the others do as it says.
rank_failure  A named failure of a rank on its way to the person who asked for the run, across two processes.
run_lock      One supervisor at a time: a lock on the run that lives as long as anything that was started under it
supervisor    Inside the allocation: start the ranks, restart them within bounds, watch, and say how it ended.
watch         Wait for the ranks of one attempt: forward a stop, end those that hang, and those whose sibling has
"""
