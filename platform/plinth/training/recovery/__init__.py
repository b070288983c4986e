"""Recovery in seconds: copies of each rank's state in the memory of two nodes, and ranks that outlive a lost rank.

    keeper       process of a node that stores copies in memory and outlives its ranks
    copies       on a rank: send copies to the keepers, and restore the state from them
    orders       records that supervisors and ranks exchange
    agent        on a rank: connection to the supervisor, and interruption of its collectives
    survival     on a rank: leave the process groups after a loss, and join new ones
    standby      process of a node that has loaded torch, and forks the ranks
    coordinator  in node 0's supervisor: detection of lost ranks, and the order to continue

Does not belong here: replacement of a lost node, which ends the job (supervise).
"""
